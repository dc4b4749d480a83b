// Package verify gathers evidence that no legacy client is left, and writes it down as a certificate.
//
// A run starts from "inconclusive". It lists the obligations that a yes needs, and says none-seen only when the
// evidence discharges each of them. A source that could not be read leaves its field of the evidence empty, and
// so its obligation undischarged. A legacy client that was seen is a verdict of its own.
//
//	window    the run looked for longer than a legacy client may be silent, which somebody has to say
//	keys      the patterns cover those of the namespace
//	masters   every master was looked at, and they were the same at the end
//	counters  the counters prove themselves: our own ECHO rises with every look, and no count ever falls
//	commands  every command that can take a lock is accounted for: none ran, or MONITOR showed each
//	denials   nobody was denied such a command on these keys
//	values    nothing is held on the keys at the start or at the end, and every key could be read
//	members   no member of the namespace ran stage legacy, and its record did not change
//
// # Counters and MONITOR
//
// Counters see everything, scripts included, but no keys. MONITOR shows keys, but has gaps. Each look at the
// counters is a mark in the stream of MONITOR, so between two marks both speak of the same commands, and their
// numbers must be equal. Where MONITOR was off, the counters must stand still. So another application may use
// SETNX all the time, as long as MONITOR is on all the time.
//
// # What is not seen
//
// A run says nothing about a client that is silent for longer than its window, nor about one that takes locks
// without any of the commands of Taking.
package verify
