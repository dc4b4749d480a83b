package proxy

import (
	"crypto/sha1" // EVALSHA's own digest, not a protection
	"fmt"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Rewriter decides what goes to the server in place of a request. It sees requests, never replies.
//
// The calls of Open, Rewrite and Close for one client follow each other; those for different clients overlap. Commands is read once.
type Rewriter interface {
	// Commands are the commands that are looked at, in capitals, and where their keys stand. All others pass.
	Commands() map[string]Keys
	// Covers tells whether a key is one of the namespace. It is called for each key of these commands and must be fast.
	Covers(key []byte) bool
	// Open and Close tell of a client that came and went. Close is the last call for a client whose Open returned.
	Open(c *Client)
	Close(c *Client)
	// Rewrite decides about one whole request with a covered key, or about any of a command without keys. With Replace it
	// appends ONE command to out, see wire.Append; with Refuse the words of the error ("ERR ..."), without a line break.
	// args are the request's words. They are valid until Rewrite returns; args[0] is as the client wrote it.
	Rewrite(c *Client, args [][]byte, out []byte) (Verdict, []byte)
}

// Verdict is what becomes of a request.
type Verdict uint8

const (
	Pass    Verdict = iota // it goes on as it came, byte for byte
	Replace                // another command goes in its place: its reply is the request's
	Refuse                 // a command goes in its place that the server answers with the error
	Hold                   // it waits, see Client.Wake; then Rewrite is asked once more
	Apart                  // Rewrite is asked once more when all requests before it are answered: then it is Alone
	Cut                    // the connection ends, and the request does not reach the server
)

// Keys says where the keys of a command stand among its words; word 0 is its name. The zero value says that it has none:
// Rewrite is asked about each one.
type Keys struct {
	First, Last, Step int  // Last may be negative: -1 is the last word
	Counted           bool // word First-1 says how many keys follow, as with EVAL; Last does not count
}

// Client is one connection of a client, for the Rewriter.
type Client struct {
	ID   int64  // of this process's connections, from 1
	Addr string // host:port of the client, or @ for a Unix socket
	Data any    // the Rewriter's own

	// Cut says, for Close, that the server or the proxy ended the connection, and not the client.
	Cut bool

	// For the verdict Hold, Rewrite sets both. The request waits until Wake is closed, Patience is over, the client sends
	// more, or it goes. Held is true in the call that follows, which cannot hold again.
	Wake     <-chan struct{}
	Patience time.Duration
	Held     bool

	// Multi is set by Rewrite while the client writes a transaction: a process that ends lets it finish.
	Multi bool

	// Alone tells Rewrite that the request is the only one that is not answered. With Replace it may then send an EVALSHA, and set
	// Script to what is called: where the server does not have the script, its text goes in place of the digest.
	Alone  bool
	Script *Script

	// Bound is set by Rewrite where the reply is worth nothing later: then the connection ends in its place. It is of no use on a connection
	// that is Uncounted, whose replies cannot be told apart: one that is Apart never becomes Alone there.
	Bound     time.Time
	Uncounted bool

	// Said are requests that Rewrite has passed, by command: another server is told them before anything else.
	Said map[string][]byte
}

// Script is a script of the server, as a command names it.
type Script struct{ text, digest []byte }

// NewScript returns a script.
func NewScript(text string) *Script {
	digest := fmt.Sprintf("%x", sha1.Sum([]byte(text)))
	return &Script{wire.AppendWord(wire.AppendWord(nil, "EVAL"), text), wire.AppendWord(wire.AppendWord(nil, "EVALSHA"), digest)}
}

// AppendCall appends a call of a script, with the words behind it: by the digest where the client is Alone, and then Script is set.
func AppendCall[W string | []byte](out []byte, c *Client, s *Script, words ...W) []byte {
	out = append(strconv.AppendInt(append(out, '*'), int64(2+len(words)), 10), "\r\n"...)
	if !c.Alone || c.Multi {
		out = append(out, s.text...)
	} else {
		c.Script = s
		out = append(out, s.digest...)
	}
	for _, word := range words {
		out = wire.AppendWord(out, word)
	}
	return out
}

// Passing passes everything on.
var Passing Rewriter = untouched{}

type untouched struct{}

func (untouched) Commands() map[string]Keys { return nil }
func (untouched) Covers([]byte) bool        { return false }
func (untouched) Open(*Client)              {}
func (untouched) Close(*Client)             {}
func (untouched) Rewrite(_ *Client, _ [][]byte, out []byte) (Verdict, []byte) {
	return Pass, out
}
