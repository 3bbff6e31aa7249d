GO ?= go
TOOL = $(GO) tool -modfile=$(CURDIR)/tools/go.mod
BUF = $(CURDIR)/tools/buf/node_modules/.bin/buf
# What a machine lints in one go: the modules beside the root one, and those with hundreds of dependencies.
BESIDE = bench examples/embedded examples/generators examples/invitations examples/store internal/testservers/ferretdb deploy/check
DEEP = compat/vesta/dubbo/interop deploy examples/recipes
MODULES = . $(BESIDE) $(DEEP)
RACE = . ./internal/batch ./store/memstore/... ./internal/service/... ./internal/api/...
BY_SYSTEM = ./internal/durable ./internal/hangup ./store/internal/fileid ./store/witness ./compat/vesta
FUZZTIME ?= 10000x
SOAK ?= 5
SEEDS ?= 1000
# Beside servers that the packages share. Four packages at a time, because most of
# them wait; vet has looked at them before.
RUN = $(GO) run ./internal/testservers/share $(GO) test -vet=off -p 4
# Those that take longest come first, so that the others fill the time in which they wait.
PACKAGES = ./internal/e2e ./store/witness ./store/sqlstore ./store/... ./internal/server . ./compat/redismongo ./internal/mount/sequences \
	./client ./internal/api/... ./internal/service ./internal/testservers ./internal/zksession ./...

.PHONY: quick test tests systems cross modules foreign race fuzz bench bench-rpc bench-redis bench-http bench-latency bench-tags lint linters form generate fresh soak deps release release-test manifests site mutants clients interop

# A minute to know.
quick:
	$(GO) vet ./...
	$(GO) test -short -vet=off ./...
	@echo "quick: all is well, but for what was left out: tests with real servers, processes and other programs, long simulations, the examples (make test); the race detector, other systems, other languages (make race, systems, interop)"

# Minutes to be sure (README.md says how many): what is decided by logic, and real servers in a state that is
# waited for; beside that, the examples. What all of it compiles comes first: at the same time, each would compile it
# for itself. The compiler collects its garbage less often, for a tenth less of processor.
test:
	@GOGC=400 $(GO) list -export ./... >/dev/null
	$(MAKE) --no-print-directory -j2 --output-sync=target tests modules

tests:
	$(RUN) -timeout 60m $(PACKAGES)

# The packages that differ between systems, as those see them, and the code for other processors; it compiles the
# standard library anew for each. Before that all modules, and what is built for tests alone, on this system.
systems:
	for m in . bench examples/embedded examples/generators examples/invitations deploy/check; do $(GO) -C $$m vet ./... || exit; done
	$(GO) vet -tags hapaxtest ./internal/server
	GOOS=darwin $(GO) vet . $(BY_SYSTEM)
	GOOS=windows GOARCH=arm64 $(GO) vet . $(BY_SYSTEM) ./codec
	$(GO) test -vet=off -tags purego -run 'Vectors|Feistel' ./codec

# Builds the command for other systems; takes about four minutes the first time.
cross:
	for os in windows darwin; do GOOS=$$os $(GO) build -o /dev/null ./cmd/hapax || exit; done

# The modules beside the root one: the examples run, Prometheus reads what is under deploy.
modules:
	for m in examples/embedded examples/generators examples/invitations deploy/check; do $(GO) -C $$m test -vet=off ./... || exit; done

# Modules whose dependencies, SQLite in Go and dubbo-go, would be a quarter of all that make test compiles: the
# example of a store passes the suite, and a consumer of another make calls the Dubbo server.
foreign:
	$(GO) -C examples/store vet ./...
	for m in examples/store compat/vesta/dubbo/interop; do $(GO) -C $$m test -vet=off ./... || exit; done

# The packages that everything else stands on, and those between them and the callers, under the race detector, for
# which the standard library is compiled anew; make soak runs all packages there.
race:
	$(GO) test -race -short -tags brief -vet=off -timeout 60m $(RACE)

# Every fuzz target on FUZZTIME inputs (or for a time: FUZZTIME=1m). The tests run the
# seeds, and what fuzzing has found.
fuzz:
	.ci/fuzz $(FUZZTIME)

# Each writes its section of docs/benchmarks.md, and takes one to four minutes on an idle
# machine; bench-redis needs redis-server and redis-benchmark, bench-http needs wrk, and
# bench-latency needs PostgreSQL, MariaDB and redis-server.
bench:
	$(GO) -C bench run . -o ../docs/benchmarks.md

bench-rpc bench-redis bench-http bench-latency:
	$(GO) -C bench run ./$(@:bench-%=%) -o ../docs/benchmarks.md

# Tells, in about four minutes, what many tags and grants cost: the first use of 100,000 tags,
# from within and over the Redis protocol; the memory of an idle one; a store with a million;
# and grants on every engine, together and each by itself. The cache of tests does not see that.
bench-tags:
	$(GO) test -run '^$$' -bench '^BenchmarkFirstUse$$' -benchtime 100000x ./internal/e2e
	HAPAX_TEST_SOAK=1 $(GO) test -count=1 -v -timeout 30m -run '^(TestFirstUseSoak|TestIdleTagsAreSmallSoak|TestMillionTagsSoak)$$' ./internal/e2e
	$(GO) test -run '^$$' -bench '^BenchmarkGuardedGrant$$' -benchtime 500ms -timeout 30m ./internal/server

# With the tools compiled, 15 minutes of processor for all modules, a third of that for deploy, which has Helm.
lint: form fresh linters

# golangci-lint has the checks of staticcheck within it. .ci/run takes a part of the modules on three days of
# eight.
linters:
	for m in $(MODULES); do (cd $$m && $(TOOL) golangci-lint run --config $(CURDIR)/.golangci.yml ./...) || exit; done

# The part of lint that takes seconds, also where no tool was compiled before.
form:
	.ci/words
	@unformatted=$$($(TOOL) gofumpt -l .); test -z "$$unformatted" || { echo "not formatted with gofumpt:"; echo "$$unformatted"; exit 1; }

# Writes the code of the RPC API from proto/; needs no network.
generate: $(BUF)
	cd proto && $(BUF) generate

# Fails where buf finds fault with proto/, and unless the generated code is what generate would write. It takes
# seconds, most of them to compile what generates it.
fresh: $(BUF)
	cd proto && $(BUF) lint
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir "$$dir/proto" && \
	(cd proto && $(BUF) generate -o "$$dir/proto") && \
	diff -r api/hapaxv1 "$$dir/api/hapaxv1" || { echo "run make generate"; exit 1; }

# To compile it, as other tools are, takes seven minutes of processor.
$(BUF):
	npm --prefix tools/buf ci --ignore-scripts --no-audit --no-fund

# SEEDS simulated worlds of the engine, and of the guard; everything under the race detector, SOAK times over; a
# hundred thousand inputs for every fuzz target; all benchmarks briefly; and every test whose name ends in Soak, one
# package after the other: crowds, storms and random crashes, which nothing else on the machine should disturb.
soak:
	$(GO) test -timeout 120m -run '^TestSimulation$$' . -sim.seeds=$(SEEDS)
	$(GO) test -timeout 120m -run '^TestWorlds$$' ./store/witness -worlds=$(SEEDS)
	$(RUN) -race -count=$(SOAK) -timeout 120m ./...
	.ci/fuzz 100000x
	for b in . ./codes ./rpc; do $(GO) -C bench run $$b -quick || exit; done
	@if command -v redis-benchmark && command -v redis-server; then $(GO) -C bench run ./redis -quick; fi
	@if command -v wrk; then $(GO) -C bench run ./http -quick; fi
	HAPAX_TEST_SOAK=1 $(GO) run ./internal/testservers/share $(GO) test -vet=off -p 1 -count=1 -v -timeout 10h -run 'Soak$$' ./...
	HAPAX_TEST_SOAK=1 $(MAKE) --no-print-directory clients interop
	HAPAX_TEST_SOAK=1 $(GO) -C compat/vesta/dubbo/interop test -count=1 -v -vet=off -timeout 60m -run 'Soak$$' ./...

# Everything that a release consists of, into dist/: binaries, archives, packages, an image,
# bills of materials, the client for Java and checksums. Each commit gives the same bytes
# everywhere, with this Go and JDK 17.
release:
	$(GO) -C deploy run ./release -top .. -o ../dist

# Builds what release does for this machine, installs, runs, upgrades and removes it;
# renders and decodes the chart, searches the site in Chromium, and runs the recipes.
release-test:
	$(GO) -C deploy vet ./...
	$(GO) -C deploy test -count=1 -vet=off -timeout 120m ./...
	$(GO) -C examples/recipes test -count=1 -timeout 60m ./...

# Renders the chart to the plain manifests in deploy/kubernetes.
manifests:
	$(GO) -C deploy run ./chart

# The documents as HTML, into dist/site.
site:
	$(GO) -C deploy run ./site -top .. -o ../dist/site

# Breaks the guard, and what its calls share their trips with, in every small way, one at a time, and names
# the ways that their quick tests do not notice; an hour at first, and minutes where it has been run before.
mutants:
	$(GO) -C tools run ./mutate -skip '^TestWorlds'
	$(GO) -C tools run ./mutate -dir ../internal/batch -equivalent ''

# All tests of the clients in other languages, with what they need from the registries, and their hooks on real
# databases. CLIENTS=quick runs what needs no network: the transcripts, and the twins that must fail them.
clients:
	tools/codelines
	$(GO) build -o bin/hapax ./cmd/hapax
	for check in clients/*/check; do echo "$$check" && HAPAX=$(CURDIR)/bin/hapax $$check $(CLIENTS) || exit; done

# What a JVM, a browser and other languages' programs make of the server and of the pages for them.
interop:
	HAPAX_TEST_INTEROP=1 $(RUN) -count=1 -timeout 60m -run 'Interop$$' ./internal/e2e ./internal/api/...

# What the tests and benchmarks use, on Debian.
deps:
	.ci/deps
