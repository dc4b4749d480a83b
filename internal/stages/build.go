package stages

import (
	"cmp"
	"path"
	"runtime/debug"
	"strings"
	"sync"
)

// Build says which program a member is, as the Go command recorded it in the binary.
type Build struct {
	Program string `json:"program,omitempty"` // the main module's path
	Version string `json:"version,omitempty"` // its version, or its commit where it has none
	Library string `json:"library,omitempty"` // this library's version
}

// String is the build in a few words, such as billing@v1.4.2 (library v0.3.0).
func (b Build) String() string {
	if b.Program == "" {
		return "-"
	}
	text := path.Base(b.Program)
	if b.Version != "" {
		text += "@" + b.Version
	}
	if b.Library != "" && b.Library != b.Version {
		text += " (library " + b.Library + ")"
	}
	return text
}

// library is this module.
const library = "github.com/lockmigrate/lockmigrate"

// release is the version of this repository's programs where the build sets it: -ldflags "-X .../internal/stages.release=v1.2.3". An image is
// built without the repository's history, so the Go command records no version there.
var release string

// Version is this program's, where its build tells; else it is empty.
func Version() string { return thisBuild().Version }

// thisBuild is the build of this process. The zero value: the binary does not tell.
var thisBuild = sync.OnceValue(func() Build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(info)
})

func buildOf(info *debug.BuildInfo) Build {
	if info == nil {
		return Build{}
	}
	b := Build{Program: info.Main.Path, Version: info.Main.Version}
	if b.Program == "" { // a binary of a single file, or of tests
		b.Program = info.Path
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.Version = s.Value[:min(12, len(s.Value))] + b.Version
			case s.Key == "vcs.modified" && s.Value == "true":
				b.Version += "+dirty"
			}
		}
	}
	if b.Program == library {
		b.Version = cmp.Or(release, b.Version)
		b.Library = b.Version
	}
	for _, m := range info.Deps {
		if m.Path == library {
			b.Library = m.Version
			if m.Replace != nil {
				b.Library = strings.TrimSpace(m.Replace.Path + " " + m.Replace.Version)
			}
		}
	}
	return b
}
