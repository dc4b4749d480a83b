package load

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Costs are what one of each thing costs a server, as it was measured on one.
type Costs struct {
	Server   string `json:"server"`  // its version
	Machine  string `json:"machine"` // that it ran on
	Measured string `json:"measured"`
	Command  string `json:"command"` // that measured it
	// Ops are the commands. One that costs more or less when it finds the key held is there twice.
	Ops []OpCost `json:"ops"`
	// MessageUS is the processor time of one message to one listener, in microseconds.
	MessageUS float64 `json:"message_us"`
	Members   Members `json:"members"`
	Bytes     Bytes   `json:"bytes"`
}

// OpCost is what one command costs; times are in microseconds.
type OpCost struct {
	Op       protocol.Op `json:"op"`
	Name     string      `json:"name"`
	Path     Path        `json:"path,omitempty"`
	Commands float64     `json:"commands"`  // that the server counts: those inside a script too
	CPU      float64     `json:"cpu_us"`    // of the server's process, reading and writing included
	Executes float64     `json:"script_us"` // of this, more than the cheapest command takes: for that time the server does nothing else
}

// Path tells what a command found. One that costs more then is in the table for each.
type Path string

// The paths.
const (
	Usual Path = ""
	Look  Path = "held"   // it changed nothing on the key; an acquisition of a bridge takes its place in the queue
	Asks  Path = "asked"  // a bridge's acquisition that found the key held, and takes no place in the queue yet
	Long  Path = "long"   // a bridge's script: somebody waits, or the key has a state of gaps for old clients
	Hands Path = "handed" // a bridge's release that hands the lock to a waiter, its message included
)

// Members is what a process that is a member of a namespace costs while it does nothing.
type Members struct {
	CommandsPerSecond float64 `json:"commands_per_second"`
	CPU               float64 `json:"cpu_us_per_second"`
	Connections       int     `json:"connections"` // when it has waited for a lock
}

// Bytes is the server's memory, in bytes.
type Bytes struct {
	Empty      float64            `json:"empty"`      // a server without keys
	Held       map[string]float64 `json:"held"`       // a held lock, by the scheme of its holder
	Waiter     float64            `json:"waiter"`     // a place in a queue
	Connection float64            `json:"connection"` // that has just sent a command
	Idle       float64            `json:"idle_connection"`
}

//go:embed costs.json
var measured []byte

// Measured returns the costs that are part of the program; docs/scale.md shows them.
func Measured() (c Costs, err error) {
	if err = json.Unmarshal(measured, &c); err == nil && len(c.Ops) == 0 {
		err = fmt.Errorf("no commands")
	}
	if err != nil {
		err = fmt.Errorf("load: costs.json: %w", err)
	}
	return c, err
}

// of finds what a command costs. One that was not measured costs what the dearest does: no forecast is too low for it.
func (c *Costs) of(op protocol.Op, path Path) OpCost {
	var dearest OpCost
	other := -1
	for i, o := range c.Ops {
		if o.Op == op && o.Path == path {
			return o
		}
		if o.Op == op {
			other = i
		}
		if o.CPU > dearest.CPU {
			dearest = o
		}
	}
	if other >= 0 {
		return c.Ops[other]
	}
	return dearest
}
