// Package proxy stands between clients and a Redis server. It passes requests on byte for byte, but for those that a Rewriter
// replaces, and copies replies without reading them.
//
// A client has one connection to the server, so the order of replies, transactions, subscriptions, blocking commands,
// authentication and the protocol version are the server's business.
package proxy
