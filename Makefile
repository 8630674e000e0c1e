# What a person does with this repository. `.ci/setup` brings the machine there and `.ci/rust` finds the Rust.
.DEFAULT_GOAL := help
.PHONY: help setup demo test bench check build clean

RUST := .ci/rust
CARGO := $(RUST) cargo

help: ## Show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing to build and test (done by the others too)
	@.ci/setup test

demo: ## Watch a rollout being steered (ARGS=--fast: under 20 s; ARGS='--layout shared': through one router)
	@.ci/setup ebpf
	@# Not optimised: there to be watched in half the time, and as fast as the demo needs.
	$(CARGO) build --bin revgate
	target/debug/revgate demo $(ARGS)

test: ## Run all tests; as root with the kernel programs
	@.ci/setup test
	@# Where the kernel programs can run, a test of theirs that is skipped is a failure.
	@require=$${REVGATE_REQUIRE-$$(.ci/setup ready && echo bpf)}; \
	[ -n "$$require" ] || echo "test: NO KERNEL PROGRAMS HERE: their tests are skipped; what is missing stands above"; \
	REVGATE_REQUIRE=$$require $(CARGO) test --no-fail-fast $(ARGS)

bench: ## Measure revgate beside nginx and HAProxy (ARGS=--quick for a short run)
	@.ci/setup bench
	$(CARGO) build --release --bin revgate --bin revgate-bench
	target/release/revgate-bench $(ARGS)

check: ## Format, clippy, documentation, licences
	@.ci/setup check
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps
	$(CARGO) deny check --hide-inclusion-graph bans licenses sources

build: ## Build the revgate binary
	@.ci/setup ebpf
	$(CARGO) build --release --bin revgate

clean: ## Remove what was built
	$(CARGO) clean
