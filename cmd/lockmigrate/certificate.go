package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// oldestCertificate is how long a certificate supports a step: traffic of the day before says little.
const oldestCertificate = 24 * time.Hour

// restsOn returns what a step rests on. Only the step to modern wants evidence: from then on nothing but the
// form of its tokens stands between a forgotten legacy client and a lock. The certificate must be about the
// record as it stands now, and its evidence is judged again: neither its verdict nor its patterns are trusted.
func restsOn(now time.Time, record stages.Record, to stages.Stage, flags stageFlags) (string, error) {
	hint := fmt.Sprintf(`"lockmigrate verify --namespace %s --longest DURATION --out FILE" writes one; advance takes the newest one in the working folder, or --certificate FILE; or say why not with --force REASON`, record.Namespace)
	switch {
	case to != stages.Modern || record.Stage != stages.Bridge:
		return "", nil
	case strings.TrimSpace(flags.force) != "":
		return "forced: " + flags.force, nil
	case flags.evidence == "" && newestCertificate(record.Namespace) != "":
		flags.evidence = newestCertificate(record.Namespace)
	case flags.evidence == "":
		return "", unsafeError(hint, "modern wants a fresh certificate that no legacy client is left")
	}
	c, err := verify.Load(flags.evidence)
	if err != nil {
		return "", failedError(hint, "%w", err)
	}
	err = c.Supports(verify.Purpose{
		Namespace: record.Namespace, Epoch: record.Epoch, Since: record.Since, Patterns: record.Patterns, Shortest: record.Shortest,
		Now: now, MaxAge: oldestCertificate,
	})
	if err != nil {
		return "", unsafeError(hint, "%s does not support the step: %w", flags.evidence, err)
	}
	longest := time.Duration(c.Evidence.LongestSeconds * float64(time.Second))
	return fmt.Sprintf("certificate: none seen in %.0f s until %s, longest silence said to be %v", c.WindowSeconds, c.Ended.UTC().Format(time.RFC3339), longest), nil
}
