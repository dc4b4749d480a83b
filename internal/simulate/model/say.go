package model

import (
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

var opNames = map[protocol.Op]string{
	protocol.BridgeTake: "bridge_acquire", protocol.BridgeSettle: "bridge_settle", settlePutting: "bridge_settle, putting back", protocol.BridgeExtend: "bridge_renew",
	protocol.BridgeDrop: "bridge_release", protocol.SetToken: "SET NX PX", protocol.Take: "modern_take",
	protocol.Extend: "modern_extend", protocol.Queue: "modern_queue", protocol.QueueRelease: "modern_release",
	protocol.SetNX: "SETNX", protocol.Get: "GET", protocol.GetSet: "GETSET", protocol.Del: "DEL",
	protocol.Watch: "WATCH", protocol.Unwatch: "UNWATCH", protocol.Commit: "MULTI SET EXEC",
	protocol.CompareDel: "compare_del", protocol.CompareSet: "compare_set",
	protocol.SidecarTake: "sidecar_take", protocol.SidecarGet: "sidecar_get", protocol.SidecarDel: "sidecar_del",
	Copying: "SET PX", protocol.SidecarKeep: "sidecar_keep", protocol.SidecarRun: "sidecar_run",
}

// SayCommand writes a command as a person would.
func SayCommand(c *protocol.Command) string {
	return strings.TrimRight(opNames[c.Op]+" "+c.Key+" "+c.Value, " ")
}

// SayReply writes a reply as a person would.
func SayReply(r *protocol.Reply) string {
	switch r.Kind {
	case protocol.Nil:
		return "nothing"
	case protocol.Integer:
		return strconv.FormatInt(r.Int, 10)
	case protocol.Fault:
		return "error " + r.Text
	case protocol.Silence:
		return "no reply"
	default:
		return r.Text
	}
}
