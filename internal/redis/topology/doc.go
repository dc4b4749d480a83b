// Package topology finds the way to the server that serves a key, where there is more than one: a
// cluster, or a master that sentinels replace.
//
// # Why not redisc and FZambia/sentinel
//
// Both are good pools, and neither can carry these locks. redisc follows redirections for Do alone, and
// the locks' throughput comes from pipelines shared by many callers; it says nothing about which errors
// mean that a command has certainly not run, on which the honesty about unknown outcomes rests; client
// tracking needs to know each master. FZambia/sentinel takes the word of the first sentinel that
// answers, so behind a partition it leads back to the demoted master. What is needed is small: a table,
// and the rules of Redirects.
//
// # The rules
//
//   - MOVED: the command has not run; the table is corrected, and it goes there.
//   - ASK: the command has not run; it goes there once, after ASKING. The table stays.
//   - TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, NOREPLICAS, MISCONF, READONLY: it has not run; it is tried again after a
//     pause, with a table that was asked for again, for as long as Patience. READONLY ends the connection: it
//     leads to a master that was demoted.
//   - A connection that cannot be made: it has not run; as above.
//   - A connection that breaks under a command: nobody knows. That is for the lock's protocol to settle, and
//     never for this package to repeat; only questions (GET, EXISTS ...) are asked again.
package topology
