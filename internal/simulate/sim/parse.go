package sim

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// mostClients and mostMasters bound what fits into the memory of a small machine.
const mostClients, mostMasters, mostKeys = 100_000, 1024, 10_000_000

// rule ends a scenario: what stands below it, such as the story of its run, is for people.
const rule = "----"

// Parse reads a scenario.
func Parse(text string) (*Scenario, error) {
	s := &Scenario{Seed: 1, Seeds: 1, names: map[string]int{}}
	s.Fleet.Until = 30 * time.Second
	s.Fleet.Network = Network{Request: Fixed(time.Millisecond), Reply: Fixed(time.Millisecond), Timeout: time.Second}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) == rule {
			break
		}
		if strings.HasPrefix(line, "#") && len(s.Fleet.Clients) == 0 {
			s.Purpose = append(s.Purpose, strings.TrimPrefix(strings.TrimPrefix(line, "#"), " "))
		}
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			if err := s.line(i+1, words); err != nil {
				return nil, err
			}
		}
	}
	if len(s.Fleet.Clients) == 0 {
		return nil, fail(len(lines), "the scenario has no client")
	}
	if s.Fleet.Masters > 1 && s.Fleet.Plan != nil {
		return nil, fail(len(lines), "turns that are written down are those of one server: leave out masters, or turn, command and latency")
	}
	slices.SortStableFunc(s.Fleet.Faults, func(a, b Fault) int { return int(min(max(a.At-b.At, -1), 1)) })
	return s, nil
}

// beginnings are the words that a line may begin with.
var beginnings = []string{"run", "seed", "seeds", "masters", "stop", "network", "server", "client", "opening", "latency", "turn", "command", "at", "expect"}

func (s *Scenario) line(n int, words []string) (err error) {
	rest := words[1:]
	switch words[0] {
	case "run":
		err = single(n, words, &s.Fleet.Until)
	case "seed":
		err = single(n, words, &s.Seed)
	case "seeds":
		err = single(n, words, &s.Seeds)
	case "masters":
		if err = single(n, words, &s.Fleet.Masters); err == nil && (s.Fleet.Masters < 1 || s.Fleet.Masters > mostMasters) {
			err = fail(n, "a cluster has 1 to %d masters here", mostMasters)
		}
	case "stop":
		s.Fleet.Stop = true
	case "network":
		err = network(n, rest, &s.Fleet.Network)
	case "server":
		err = options(n, rest, "a server", serverFields(&s.Fleet.Server))
	case "client":
		err = s.client(n, rest)
	case "opening":
		err = s.opening(n, rest)
	case "latency":
		err = single(n, words, &s.plan().Latency)
	case "turn":
		err = s.turn(n, rest)
	case "command":
		err = s.command(n, rest)
	case "at":
		err = s.fault(n, rest)
	case "expect":
		err = s.expect(n, rest)
	default:
		err = unknown(n, words[0], beginnings, "no line begins with %q", words[0])
	}
	return err
}

func (s *Scenario) plan() *Plan {
	if s.Fleet.Plan == nil {
		s.Fleet.Plan = &Plan{Latency: time.Millisecond}
	}
	return s.Fleet.Plan
}

// network reads: DELAY [reply=DELAY] [timeout=D] [lose-request=P] [lose-reply=P] [repeat=P] [repeat-reply=P] [lose-message=P]
func network(n int, words []string, network *Network) (err error) {
	if len(words) > 0 && !strings.Contains(words[0], "=") {
		if network.Request, err = distribution(n, words[0]); err != nil {
			return err
		}
		network.Reply, words = network.Request, words[1:]
	}
	fields := []field{{"request", &network.Request}, {"reply", &network.Reply}, {"timeout", &network.Timeout}}
	return options(n, words, "a network", append(fields, losses(network)...))
}

func losses(network *Network) []field {
	return []field{{"lose-request", &network.LoseRequest}, {"lose-reply", &network.LoseReply}, {"repeat", &network.Repeat},
		{"repeat-reply", &network.RepeatReply}, {"lose-message", &network.LoseMessage}}
}

func serverFields(server *Server) []field {
	return []field{{"ahead", &server.Offset}, {"drift", &server.DriftPPM},
		{"fails-over-every", &server.FailoverEvery}, {"outage", &server.Outage}, {"behind", &server.Behind}}
}

// opening reads: KEY VALUE | KEY expired D ago [in DIALECT]
func (s *Scenario) opening(n int, words []string) error {
	switch {
	case len(words) > 0 && !slices.ContainsFunc(s.Fleet.Clients, func(c Client) bool { return c.locks(words[0]) }):
		return fail(n, "no client above locks %q: an opening is of a lock's key, and not of one beside it", words[0])
	case len(words) == 2:
		s.Fleet.Opening = append(s.Fleet.Opening, model.Entry{Key: words[0], Value: words[1]})
		return nil
	case len(words) >= 4 && words[1] == "expired" && words[3] == "ago":
		ago, err := span(n, words[2])
		if err != nil {
			return err
		}
		d := protocol.JedisMS
		if len(words) == 6 && words[4] == "in" {
			if d, err = dialect(n, words[5]); err != nil {
				return err
			}
		}
		value, _ := d.Expiry(Epoch.Add(-ago), 0, ownerOf(99))
		s.Fleet.Opening = append(s.Fleet.Opening, model.Entry{Key: words[0], Value: value})
		return nil
	}
	return fail(n, "write: opening KEY VALUE, or: opening KEY expired 5s ago")
}

// turn reads: CLIENT at T holds D [on KEY]
func (s *Scenario) turn(n int, words []string) error {
	key := ""
	if len(words) == 7 && words[5] == "on" {
		key, words = words[6], words[:5]
	}
	if len(words) != 5 || words[1] != "at" || words[3] != "holds" {
		return fail(n, "write: turn CLIENT at TIME holds DURATION, and: on KEY, of a client with keys=")
	}
	who, err := s.who(n, words[0])
	if err != nil {
		return err
	}
	at, err := span(n, words[2])
	if err != nil {
		return err
	}
	c := &s.Fleet.Clients[who]
	if key != "" && (len(c.Keys) == 0 || !c.locks(key)) || key == "" && len(c.Keys) > 0 {
		return fail(n, "say on which of its keys= %s takes its turn, and only where it has some", words[0])
	}
	hold, err := span(n, words[4])
	s.plan().Turns = append(s.plan().Turns, Turn{Client: who, At: protocol.Instant(at), Hold: hold, Key: key})
	return err
}

// command reads: N of CLIENT [request=D] [reply=D] [FATE]
func (s *Scenario) command(n int, words []string) error {
	if len(words) < 3 || words[1] != "of" {
		return fail(n, "write: command N of CLIENT request=DURATION reply=DURATION FATE")
	}
	nth, err := strconv.Atoi(words[0])
	if err != nil || nth < 1 {
		return fail(n, "%q is no number of a command; the first is 1", words[0])
	}
	who, err := s.who(n, words[2])
	if err != nil {
		return err
	}
	plan := s.plan()
	d := Delay{Client: who, Nth: nth, Request: plan.Latency, Reply: plan.Latency}
	for _, word := range words[3:] {
		if fate := slices.Index(FateNames, word); fate >= 0 {
			d.Fate = Fate(fate)
			continue
		}
		if err := options(n, []string{word}, "a command", []field{{"request", &d.Request}, {"reply", &d.Reply}}, FateNames...); err != nil {
			return err
		}
	}
	plan.Delays = append(plan.Delays, d)
	return nil
}

// fault reads: T CLIENT|server VERB [D]
func (s *Scenario) fault(n int, words []string) error {
	if len(words) < 3 {
		return fail(n, "write: at TIME CLIENT pauses|crashes|steps|slews|drifts DURATION, or: at TIME server fails-over DURATION")
	}
	at, err := span(n, words[0])
	if err != nil {
		return err
	}
	f := Fault{At: protocol.Instant(at), Client: -1}
	if words[1] != "server" {
		if f.Client, err = s.who(n, words[1]); err != nil {
			return err
		}
	}
	var verbs []string
	for _, k := range faultKinds {
		verbs = append(verbs, k.verb)
		if can := k.client && f.Client >= 0 || k.server && f.Client < 0; k.verb == words[2] && !can {
			return fail(n, "%s cannot %q", words[1], words[2])
		}
	}
	kind := slices.Index(verbs, words[2])
	if kind < 0 {
		return unknown(n, words[2], verbs, "%s cannot %q", words[1], words[2])
	}
	f.Kind = FaultKind(kind)
	switch {
	case len(words) > 3 && f.Kind == DriftClock:
		var rate int64
		rate, err = ppm(n, words[3])
		f.By = time.Duration(rate)
	case len(words) > 3:
		f.By, err = span(n, words[3])
	}
	s.Fleet.Faults = append(s.Fleet.Faults, f)
	return err
}

// expect reads: WHAT = N
func (s *Scenario) expect(n int, words []string) error {
	if len(words) != 3 || !strings.Contains("=<>", words[1]) {
		return fail(n, "write: expect WHAT = N (or <, >)")
	}
	count, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil {
		return fail(n, "%q is no count", words[2])
	}
	if _, known := Count(&Tally{}, words[0]); !known {
		return unknown(n, words[0], slices.Sorted(maps.Keys(counts(&Tally{}))), "nothing counts %q", words[0])
	}
	s.Expect = append(s.Expect, Expectation{words[0], words[1], count})
	return nil
}

// who finds a client by its name.
func (s *Scenario) who(n int, name string) (int, error) {
	if i, known := s.names[name]; known {
		return i, nil
	}
	return 0, unknown(n, name, slices.Sorted(maps.Keys(s.names)), "no client is named %q", name)
}
