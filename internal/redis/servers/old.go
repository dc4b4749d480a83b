package servers

import (
	"strings"

	"github.com/gomodule/redigo/redis"
)

// OldReply begins the error of a script that a server is too old for, see effects.lua.
const OldReply = "OLDSERVER"

// TooOld is the refusal of a server on which a script cannot run. Nothing was written.
type TooOld struct {
	Server  Server
	Feature Feature // that was wanted
	Reply   redis.Error
}

// Old reads the reply of a script; nil for any other error.
func Old(reply redis.Error, script string) *TooOld {
	text, found := strings.CutPrefix(string(reply), OldReply+" Redis ")
	if !found {
		return nil
	}
	version, _, _ := strings.Cut(text, " ")
	if version == "before" { // INFO is refused to scripts there
		version = ""
	}
	feature, _ := Find(featureOf(script))
	return &TooOld{Server{"Redis", version}, feature, reply}
}

// featureOf finds the row that a script belongs to.
func featureOf(script string) string {
	switch {
	case strings.HasPrefix(script, "bridge_"):
		return Bridge
	case strings.HasPrefix(script, "modern_"):
		return Modern
	default: // stage_ and gated_
		return Namespace
	}
}

// What says in one line what is missing.
func (o *TooOld) What() string {
	this := "this server is older"
	if o.Server.Version != "" {
		this = "this is " + o.Server.String()
	}
	wanted := o.Feature.Name
	if o.Feature.ID == Modern {
		wanted += ", and Fencing"
	}
	return wanted + ": needs Redis 3.2 or later, " + this + ", where " + clockNote
}

// Instead says what works there.
func (o *TooOld) Instead() string {
	var names []string
	for _, f := range Features {
		if f.At(oldest).How.Usable() {
			names = append(names, f.Name)
		}
	}
	return "upgrade the server, or use what works there: " + strings.Join(names, "; ")
}

func (o *TooOld) Error() string { return o.What() + ": " + o.Instead() }

// Unwrap gives the server's reply.
func (o *TooOld) Unwrap() error { return o.Reply }
