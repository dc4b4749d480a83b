package load

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Text writes the report for a terminal.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "STAGE\tTIMES\tCLIENTS\tLOCKS/S\tMEAN WAIT\tCOMMANDS/S\tCPU\tSCRIPTS\tMESSAGES/S\tCONNECTIONS\tMEMORY\t")
	for i := range r.Stages {
		s := &r.Stages[i]
		for _, row := range s.Rows {
			if row.Skipped != "" {
				fmt.Fprintf(t, "%s\t%d\t%s\t-\t-\t-\t-\t-\t-\t-\t-\t\n", s.Name, row.Factor, count(float64(row.Clients)))
				continue
			}
			u := &row.Server
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%v\t%s\t%s\t%s\t%s\t%s\t%s\t\n", s.Name, row.Factor, count(float64(row.Clients)), count(row.Acquired), brief(row.MeanWait),
				count(u.Commands), percent(u.CPU), percent(u.Scripts), count(u.Messages), count(float64(u.Connections)), bytes(u.Memory))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nLOCKS/S and CLIENTS are the fleet's; the other columns are the busiest of %d masters. CPU and SCRIPTS are of one core.\n", r.Masters)
	limits := fmt.Sprintf("%.0f %% of a core, %s connections", 100*r.Limits.CPU, count(float64(r.Limits.Connections)))
	if r.Limits.Memory > 0 {
		limits += ", " + bytes(float64(r.Limits.Memory))
	}
	fmt.Fprintf(w, "limits of a server: %s\n", limits)
	for i := range r.Stages {
		fmt.Fprintf(w, "%s: %s\n", r.Stages[i].Name, r.Stages[i].limit())
	}
	skipped := false
	for i := range r.Stages {
		for _, row := range r.Stages[i].Rows {
			if row.Skipped != "" && !skipped {
				skipped = true
				fmt.Fprintf(w, "%d times: %s\n", row.Factor, row.Skipped)
			}
		}
	}
	_, err := fmt.Fprintf(w, "unit costs: %s on %s, %s; docs/scale.md shows them\n", r.Costs.Server, r.Costs.Machine, r.Costs.Measured)
	return err
}

func (s *Stage) limit() string {
	switch {
	case s.First == "":
		return "no limit is in sight"
	case s.Certain:
		return fmt.Sprintf("first limit: %s, at about %s times this fleet", s.First, times(s.FirstAt))
	default:
		return fmt.Sprintf("first limit: %s, at about %s times this fleet if it goes on growing so", s.First, times(s.FirstAt))
	}
}

func times(f float64) string {
	if f < 10 {
		return fmt.Sprintf("%.1f", f)
	}
	return count(f)
}

func percent(f float64) string { return fmt.Sprintf("%.1f%%", 100*f) }

func count(f float64) string {
	switch {
	case f >= 1e6:
		return fmt.Sprintf("%.1fM", f/1e6)
	case f >= 1e5:
		return fmt.Sprintf("%.0fk", f/1e3)
	case f >= 100 || f == float64(int64(f)):
		return fmt.Sprintf("%.0f", f)
	default:
		return fmt.Sprintf("%.1f", f)
	}
}

func bytes(f float64) string {
	switch {
	case f >= 1<<30:
		return fmt.Sprintf("%.1f GiB", f/(1<<30))
	case f >= 1<<20:
		return fmt.Sprintf("%.1f MiB", f/(1<<20))
	default:
		return fmt.Sprintf("%.0f KiB", f/(1<<10))
	}
}

// brief rounds a time to what can be read at a glance.
func brief(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	default:
		return d.Round(100 * time.Microsecond)
	}
}
