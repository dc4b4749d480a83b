package demo

import (
	"context"

	"github.com/lockmigrate/lockmigrate/internal/operate/behind"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
)

// sidecarName is of the service that comes back.
const sidecarName = "java"

// joinBehind starts a sidecar, and Java members that do what they always did, but for the address that they connect to.
func (s *stage) joinBehind(ctx context.Context, n int) error {
	through, err := behind.Start(ctx, s.opts.Pool, s.opts.End, sidecar.Options{Namespace: s.store.Namespace, Name: sidecarName, Lease: lease}, s.key())
	if err != nil {
		return err
	}
	s.closers = append(s.closers, through.Close)
	s.say("lockmigrate sidecar --namespace %s --name %s --listen %s", s.store.Namespace, sidecarName, through.Addr)
	s.say("%d java services come back as they were, with the sidecar's address in place of the server's: they hold tokens now", n)
	return s.joinJava(n, through.Pool())
}
