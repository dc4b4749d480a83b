package profile

// Drift is how fast a client's clock runs beside the server's, in microseconds a second (ppm), with the largest error that
// the readings allow. It is not known where there are fewer than two readings.
//
// The error of a reading is a bound and no deviation: what is common to all readings, such as a lease that was guessed, is
// not in it. Of all pairs of readings, the one with the smallest errors beside the time between them speaks.
func (c Client) Drift() (ppm, errPPM float64, known bool) {
	for i, a := range c.Clock {
		for _, b := range c.Clock[i+1:] {
			dt := b.At.Sub(a.At).Seconds()
			if dt <= 0 {
				continue
			}
			if e := 1000 * (a.ErrorMS + b.ErrorMS) / dt; !known || e < errPPM {
				ppm, errPPM, known = 1000*(b.SkewMS-a.SkewMS)/dt, e, true
			}
		}
	}
	return ppm, errPPM, known
}
