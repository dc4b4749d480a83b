// Package lockmigrate is the vocabulary that the lock packages share: what a lock is, what can go wrong with it, who is told, and
// where connections come from.
//
// The locks themselves are in three packages of one shape:
//
//   - legacy: the old SETNX/GETSET lock whose value is its expiry, as existing Java and Python
//     holders speak it;
//   - modern: token and TTL, the lock to move to;
//   - compat: the bridge that both kinds respect, and the stages in which a fleet moves over.
//
// The command lockmigrate is the operator's side of such a move.
package lockmigrate
