package topology

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/gomodule/redigo/redis"
)

// What a sentinel may fail to say.
var (
	ErrNoMaster = errors.New("the sentinel knows no master of that name")
	ErrNoEpoch  = errors.New("the sentinel does not say how new its answer is")
)

// AskSentinel asks one sentinel for the address of a master, and for the configuration epoch: how new the answer is. do sends a
// command and returns its reply.
//
// Two questions, in this order. The sentinel that leads a failover has the new epoch as soon as the replica is promoted. Until all
// other replicas follow that one, MASTER still gives the old master's address beside it. The address comes from the other
// question, and is no older than the epoch.
func AskSentinel(do func(name string, args ...any) (any, error), master string) (addr string, epoch int64, err error) {
	fields, err := redis.StringMap(do("SENTINEL", "MASTER", master))
	var parts []string
	if err == nil {
		parts, err = redis.Strings(do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master))
	}
	refused, _ := err.(redis.Error)
	switch {
	case strings.HasPrefix(string(refused), "ERR No such"), errors.Is(err, redis.ErrNil), err == nil && len(parts) != 2:
		return "", 0, ErrNoMaster
	case err != nil:
		return "", 0, err
	}
	if epoch, err = strconv.ParseInt(fields["config-epoch"], 10, 64); err != nil || epoch < 0 {
		return "", 0, ErrNoEpoch
	}
	return net.JoinHostPort(parts[0], parts[1]), epoch, nil
}

// NewestOf asks all sentinels at once and returns the answer with the highest epoch: one that a partition has cut off, or that came
// up with old settings, names a master that nobody uses any more. Without an answer the epoch is -1. The errors are in the order
// of the addresses.
func NewestOf[A any](sentinels []string, ask func(addr string) (A, int64, error)) (newest A, epoch int64, errs []error) {
	answers, epochs, failed := make([]A, len(sentinels)), make([]int64, len(sentinels)), make([]error, len(sentinels))
	var asking sync.WaitGroup
	for i, addr := range sentinels {
		asking.Go(func() { answers[i], epochs[i], failed[i] = ask(addr) })
	}
	asking.Wait()
	epoch = -1
	for i, err := range failed {
		if err != nil {
			errs = append(errs, err)
		} else if epochs[i] > epoch {
			newest, epoch = answers[i], epochs[i]
		}
	}
	return newest, epoch, errs
}
