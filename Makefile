# The developer's commands. `make test` is the one that counts; CI runs it.

GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GORELEASER = github.com/goreleaser/goreleaser/v2@v2.13.0
ACTIONLINT = github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# What the full suite uses; see internal/evidence/redistest for what each name means, and scripts/suites for what a machine has.
SUITES ?= $(or $(shell ./scripts/suites),all)

.PHONY: test quick setup check fuzz bench bench-smoke soak lifecycle twin faults pairs pictures playground image

test: ## everything, on real servers and with the real holders
	$(MAKE) --no-print-directory -j2 --output-sync=target setup check
	LOCKMIGRATE_SUITES=$(SUITES) ./scripts/test

quick: ## the quick loop: the root module, with nothing but Go; the suites are a module of their own
	$(GO) test ./...

setup: ## installs (as root on Debian) or names what the full suite needs, and builds the holders
	./scripts/setup

check: ## formatting, vet, staticcheck, the GitHub workflows
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet work
	GOOS=js GOARCH=wasm $(GO) vet ./cmd/playground
	$(GO) run $(STATICCHECK) work
	cd internal/evidence/bench && $(GO) vet ./...
	$(GO) run $(ACTIONLINT)

vulnerabilities: ## what govulncheck knows of the code and its requirements; it says where its database could not be reached
	./scripts/vulnerabilities

rehearsal: ## a release of this commit into dist, without signatures, and nothing is published: ten minutes on two cores
	$(GO) run $(GORELEASER) check
	$(GO) run $(GORELEASER) release --snapshot --clean --skip=sign

fuzz: ## each parser for FUZZTIME
	./scripts/fuzz $(or $(FUZZTIME),20s)

soak: ## a mixed fleet under random faults and stage changes for LENGTH, from SEED (0: from the clock), on TOPOLOGY single, sentinel or cluster; FLEET is drawn unless given
	LOCKMIGRATE_SUITES=$(SUITES) $(GO) test ./internal/evidence/suites/soak -run 'TestSoak$$' -v -timeout 0 -topology $(or $(TOPOLOGY),single) -length $(or $(LENGTH),10m) -seed $(or $(SEED),0) -fleet "$(FLEET)"

lifecycle: ## SEQUENCES random sequences of each kind of lock, from seed FROM (0: from the clock)
	for kind in legacy compat modern redisson quorum handover; do \
	  $(GO) test ./internal/evidence/suites/lifecycle -run 'TestLifecycle$$' -v -timeout 0 -args -kind $$kind -sequences $(or $(SEQUENCES),100000) -from $(or $(FROM),1) || exit 1; done

twin: ## PROGRAMS random programs on a bare server and through sidecars, from number FROM: an hour for a million
	LOCKMIGRATE_SUITES=redis $(GO) test ./internal/operate/sidecar -run 'TestTwin$$' -v -timeout 0 -args -programs $(or $(PROGRAMS),1000000) -first $(or $(FROM),1)

faults: ## every fault ROUNDS times, and docs/faults.md anew
	LOCKMIGRATE_SUITES=$(SUITES) $(GO) test ./internal/evidence/suites/faults -run TestFaults -v -timeout 0 -update -rounds $(or $(ROUNDS),10)

pairs: ## fleets that move from each lock to another on real servers, under faults, for TURNS turns in all
	LOCKMIGRATE_SUITES=$(SUITES) $(GO) test ./internal/evidence/suites/handover -run 'TestPairs$$' -v -timeout 0 -args -turns $(or $(TURNS),20000)

pictures: ## docs/pictures, from what the tools print and show (redis-server, Chromium)
	LOCKMIGRATE_SUITES=redis,browser $(GO) test ./internal/evidence/suites/pictures -run TestPictures -v -args -update

playground: ## build/playground.html: the page on which one moves sliders, and sees two holders
	mkdir -p build && $(GO) run ./cmd/playground build/playground.html

image: ## the static program of deploy/Dockerfile in an empty root as a user without rights (as root, redis-server): a minute on two cores
	LOCKMIGRATE_SUITES=redis,image $(GO) test ./internal/evidence/suites/deploy -run TestContainers -v

bench: ## every lock beside its peers, compared by benchstat; see docs/benchmarks.md (redis-server on the PATH)
	GO="$(GO)" ./internal/evidence/bench/run

bench-smoke: ## the bench module's own checks and a tiny round of everything
	cd internal/evidence/bench && $(GO) vet ./... && LOCKMIGRATE_SUITES=$(SUITES) $(GO) test -short -bench . -benchtime 3x ./...
