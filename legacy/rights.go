// # Least rights
//
// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:
// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.
// `lockmigrate doctor` tries them. This text is made from internal/operate/doctor/rights.txt, and a test compares it.
//
//   - legacy. Keys: KEY. Channels: none.
//     Commands: setnx getset del get set pttl [persist] [type] [pexpire] eval evalsha.
//
//   - legacy ReleaseCompare. Keys: KEY. Channels: none.
//     Commands: setnx getset get del eval evalsha set pttl [persist] [type] [pexpire].
//
//   - legacy ServiceStack. Keys: KEY. Channels: none.
//     Commands: setnx watch unwatch multi exec del get set pttl [persist] [type] [pexpire] eval evalsha.
//
//   - legacy FollowServer. Keys: KEY. Channels: none.
//     Commands: setnx getset time del get set pttl [persist] [type] [pexpire] eval evalsha.
package legacy
