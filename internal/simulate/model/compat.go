package model

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// CompatMember is who as a service with package compat plays it: at stage bridge, or with modern at stage modern, beside old clients
// of these terms. It keeps who's name, keys and dialect.
func CompatMember(who Member, terms protocol.MemberTerms, modern bool) Member {
	terms.Dialect = who.Dialect
	terms = terms.WithDefaults()
	who.Scheme, who.Behind, who.OldStage = Bridge, "", false
	who.Lease, who.Renew = terms.TTL, terms.Renew()
	who.Grace, who.Settle, who.Claim, who.Yield = terms.Grace(), terms.Settle(), terms.Claim(), max(terms.Yield, 0)
	who.Poll, who.Queue, who.Tracks, who.QueueTTL = protocol.LongestSleep, true, true, terms.QueueTTL()
	who.Alone = modern
	return who
}

// BehindSidecar is who as it is, behind a sidecar at stage bridge of its own. The sidecar repairs the lock three times a lease.
func BehindSidecar(who Member, terms protocol.MemberTerms) Member {
	terms.Dialect = who.Dialect
	terms = terms.WithDefaults()
	who.Scheme, who.Behind, who.Queue, who.Renew = Sidecar, who.Name, false, who.Lease/3
	who.Grace, who.Settle, who.Yield = terms.Grace(), terms.Settle(), max(terms.Yield, 0)
	return who
}
