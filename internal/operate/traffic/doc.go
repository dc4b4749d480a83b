// Package traffic is one stream of what clients did to keys. A source shows commands: the MONITOR of a server, a file of its lines, a capture
// of tcpdump, or the connections that pass through a proxy. Each Command says who sent it, to which database, when, and from
// within which script. Keys replays the commands and says what each did to its key. A Table, which is a server's own COMMAND, says
// which keys a command can have touched, in any position.
//
// # How outcomes are known
//
// MONITOR shows every command in the order in which the server ran it, but no reply. Since the order is total, the replies follow: Keys
// replays each command on a copy of the keys and says what the server must have answered. Reads of our own pass through the same
// stream and so have an exact place in that order. Where a key's state is not known, an outcome is Unsettled; it is never guessed.
// A capture and a proxy show replies too: Keys learns from them.
//
// # What is not shown
//
// MONITOR leaves out commands that the server refused, commands of administration, and the end of a very long line (Cut). A capture does not show
// what a script did, or what TLS hides. A line that cannot be read is ErrUnread. What a source could not read it says.
package traffic
