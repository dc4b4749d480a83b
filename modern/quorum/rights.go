// # Least rights
//
// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:
// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.
// `lockmigrate doctor` tries them. This text is made from internal/operate/doctor/rights.txt, and a test compares it.
//
//   - quorum. Keys: KEY. Channels: none.
//     Commands: set get del eval evalsha pexpire [type].
package quorum
