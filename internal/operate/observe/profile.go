package observe

import "github.com/lockmigrate/lockmigrate/internal/operate/profile"

// Profile writes down the fleet of a report for simulate.
func (r Report) Profile() profile.Profile {
	p := profile.Profile{Version: profile.Version, Measured: r.Started, WindowSeconds: r.WindowSeconds}
	rows := map[string]int{}
	for _, row := range r.Clients {
		rows[row.Addr]++
	}
	for _, row := range r.Clients {
		if row.Tries == 0 {
			continue
		}
		c := profile.Client{Name: row.Addr, Kind: row.Kind, Dialect: row.Dialect, Count: 1, Keys: row.Keys, HoldMS: row.Hold.quantiles(), WaitMS: row.Wait.quantiles()}
		if rows[row.Addr] > 1 { // a host whose clients do different things
			c.Name += "/" + row.Dialect
		}
		if row.LeaseMS != nil {
			c.LeaseMS, c.LeaseFrom = *row.LeaseMS, row.LeaseFrom
		}
		if row.PollMS != nil {
			c.PollMS = *row.PollMS
		}
		if row.SkewMS != nil {
			c.SkewKnown, c.SkewMS, c.SkewErrorMS = true, *row.SkewMS, *row.SkewErrorMS
		}
		c.PauseMS = row.PauseMaxMS
		if r.WindowSeconds > 0 {
			c.PerSecond = float64(row.Acquired) / r.WindowSeconds
		}
		p.Clients = append(p.Clients, c)
	}
	return p
}

func (s *samples) quantiles() []profile.Quantile {
	if len(s.kept) == 0 {
		return nil
	}
	var all []profile.Quantile
	for _, share := range []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1} {
		all = append(all, profile.Quantile{Share: share, MS: ms(s.at(share))})
	}
	return all
}
