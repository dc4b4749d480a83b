// Package verify gathers evidence that no legacy client is left, and writes it down as a certificate.
//
// A run starts from "inconclusive". It lists the obligations that a yes needs, and says none-seen only when the
// evidence discharges each of them. A source that could not be read leaves its field of the evidence empty, and
// so its obligation undischarged. A legacy client that was seen is a verdict of its own.
//
//	window    the run looked for longer than a legacy client may be silent, which somebody has to say
//	keys      the patterns cover those of the namespace, and a key or a command matched each of them
//	masters   every master was looked at, and they were the same at the end
//	counters  the counters prove themselves: our own ECHO rises with every look, and no count ever falls.
//	          Nothing kept commands back or sent them elsewhere: no pause, failover or lost replica, no client that waits
//	commands  every command that writes is accounted for, and what touched a lock key is explained
//	denials   nobody was denied a command that can take a lock on these keys
//	values    nothing is held on the keys at the start or at the end, and every key could be read
//	members   a member of the namespace still reports, none ran stage legacy, and its record did not change
//
// # What is allowed
//
// The judgement knows what may happen on a lock key, and no list of what may not: see the method form. Which commands write, and where
// their keys stand, each server says itself (package traffic, Table). What nothing explains is named: as a legacy client, if only the
// old scheme does so in this database; else as a client that nobody can explain, and then the run is inconclusive.
//
// A run about a handover allows nothing by its form: there the question is who sent a command. See members.go. Its obligations are the
// same, without values, and with one of its own in place of members:
//
//	handover  the record stands, this is the server of its Old, and members report
//
// # Counters and MONITOR
//
// Counters see everything, scripts included, but no keys. MONITOR shows keys, but has gaps. Each look at the
// counters is a mark in the stream of MONITOR, so between two marks both speak of the same commands, and their
// numbers must be equal. Where MONITOR was off, no command may have run that writes, unless ACL rules keep it from the lock keys.
//
// # What is not seen
//
// A run says nothing about a client that is silent for longer than its window.
package verify
