# What a person does with this repository. `.ci/setup` brings the machine there and `.ci/rust` finds the Rust.
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-cluster fuzz bench bench-pair check build image clean

RUST := .ci/rust
CARGO := $(RUST) cargo

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing to build and test (done by the others too)
	@.ci/setup test

demo: ## Watch a rollout being steered (ARGS=--fast: under 20 s; ARGS='--layout shared': through one router)
	@.ci/setup ebpf
	@# Not optimised: there to be watched in half the time, and as fast as the demo needs.
	$(CARGO) build --bin revgate
	target/debug/revgate demo $(ARGS)

demo-cluster: ## A cluster with revgate on it, to look at until Ctrl-C; as root
	@.ci/setup test cluster
	@cluster=$$(tests/cluster/build) && tests/cluster/images && \
	REVGATE_CLUSTER=$$cluster REVGATE_REQUIRE=node $(CARGO) run -p revgate-tests --bin revgate-cluster

test: ## Run all tests; as root with the kernel programs
	@.ci/setup test envoy
	@# Where the kernel programs can run, a test of theirs that is skipped is a failure. So it is with Envoy.
	@require=$${REVGATE_REQUIRE-$$(.ci/setup ready && echo bpf),$$([ ! -x target/envoy-venv/bin/envoy ] || echo envoy)}; \
	.ci/setup ready || echo "test: NO KERNEL PROGRAMS HERE: their tests are skipped; what is missing stands above"; \
	REVGATE_REQUIRE=$$require $(CARGO) test --no-fail-fast $(ARGS)

test-cluster: ## Run the tests on a real API server and a real node; as root
	@.ci/setup test cluster
	@cluster=$$(tests/cluster/build) && tests/cluster/images && \
	PATH=$$cluster:$$PATH REVGATE_CLUSTER=$$cluster REVGATE_REQUIRE=$${REVGATE_REQUIRE-bpf,apiserver,node,kubectl,helm} \
	$(CARGO) test -p revgate-tests --no-fail-fast --test deploy --test 'apiserver_*' --test 'node_*' $(ARGS)

fuzz: ## Fuzz a parser (ARGS='json_edit -- -max_total_time=60'; without: the names of all)
	@.ci/setup fuzz
	@tests/fuzz/run $(ARGS)

bench: ## Measure revgate beside nginx and HAProxy, and behind Envoy (ARGS=--quick for a short run)
	@.ci/setup bench envoy
	deploy/build-static target/bench revgate revgate-bench
	target/bench/revgate-bench $(ARGS)

bench-pair: ## Measure pair listeners beside vllm-router and smg from PyPI
	@.ci/setup bench routers
	deploy/build-static target/bench revgate revgate-bench
	target/bench/revgate-bench --only pair $(ARGS)

check: ## Format, clippy, documentation, licences
	@.ci/setup check
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path tests/fuzz/Cargo.toml --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps
	$(CARGO) deny check --hide-inclusion-graph bans licenses sources
	$(CARGO) deny --locked --manifest-path tests/fuzz/Cargo.toml check --hide-inclusion-graph bans licenses sources

build: ## Build the revgate binary
	@.ci/setup ebpf
	$(CARGO) build --release --bin revgate

image: ## Make the images of agent and simulated engine without Docker (target/images)
	@tests/cluster/images

clean: ## Remove what was built
	$(CARGO) clean
