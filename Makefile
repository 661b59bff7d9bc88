# The single entry point to everything that can be done with a checkout. CI calls the same targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo setup-bench demo cluster kubernetes test sim chaos image test-fast check bench bench-latency bench-cluster bench-groups bench-spark bench-console bench-revision bench-scale bench-page prove manifests docs release constraints clean

BIN := .venv/bin
# Further arguments of pytest: `make test-fast PYTEST="-k recovery -x"`
PYTEST ?=
# Further options of the simulator: `make sim SIM="--help"`
SIM ?=
# Further options of the proofs: `make prove PROVE="--help"`
PROVE ?=
# Further options of the faults: `make chaos CHAOS="--seconds 600 --faults kill-leader --seed 7"`
CHAOS ?=
# Further options of the cluster: `make cluster CLUSTER="--help"`
CLUSTER ?=
# Commands of the local Kubernetes: `make kubernetes KUBERNETES="--help"`
KUBERNETES ?= up
# Further options of the benchmarks: `make bench BENCH="--help"`
BENCH ?=

# Further arguments of the image build: `make image IMAGE="fairlead --image localhost/fairlead:try"`
IMAGE ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what tests, checks and docs need into .venv
	@.ci/setup.sh dev

setup-demo:
	@.ci/setup.sh demo

setup-bench: setup-demo
	@.ci/setup.sh bench

demo: setup-demo ## start a broker, read the flights of 2013 in groups while they are loaded, kill a member, count on Spark, check the results
	@$(BIN)/python docs/tutorial/flights.py

cluster: setup ## etcd and three brokers as processes, until Ctrl-C
	@$(BIN)/python .ci/cluster.py $(CLUSTER)

kubernetes: setup ## a Kubernetes without Docker, to try things on: KUBERNETES="up", "status", "shell", "down" (needs root)
	@$(BIN)/python .ci/kubernetes.py $(KUBERNETES)

test: setup ## every test but the long scenarios (`make prove`, `make chaos`), with the coverage of the pure packages
	@$(BIN)/python .ci/test.py all $(PYTEST)

test-fast: setup ## the tests without the slow ones, under three minutes
	@$(BIN)/python .ci/test.py fast $(PYTEST)

check: setup ## lint, format, types, layers, docstrings, rules of the sources, links of the docs, spelling
	@.ci/check.sh

bench: setup-bench ## ratios against Kafka, its Python clients and NATS JetStream on this machine (needs Java, Maven and Go)
	@$(BIN)/python benchmarks/bench.py $(BENCH)

bench-cluster: setup-bench ## three brokers: throughput against Kafka, failover, moves, many partitions, links against MirrorMaker 2 (about 40 minutes)
	@$(BIN)/python benchmarks/cluster.py $(BENCH)

bench-groups: setup-bench ## consumer groups: joins, kills, a thousand groups, consuming against Kafka's Python clients (about 20 minutes)
	@$(BIN)/python benchmarks/groups.py $(BENCH)

bench-spark: setup-bench ## Spark: reads, streams, writes and triggers against Spark's own Kafka connector (about 15 minutes)
	@$(BIN)/python benchmarks/spark.py $(BENCH)

bench-console: setup ## the console: times of its pages, first paints, memory with ten tabs, searches, live tails (about 30 minutes)
	@$(BIN)/python benchmarks/console.py $(BENCH)

bench-revision: setup ## producing and consuming against an earlier revision: BENCH="--revision v0.1 --pairs 7" (about 10 minutes)
	@$(BIN)/python benchmarks/revisions.py $(BENCH)

bench-scale: setup-bench ## growing work: partitions, connections, groups, producers, size, brokers (about 10 minutes, 14 GB of disk)
	@$(BIN)/python benchmarks/scale.py $(BENCH)

bench-page: setup-bench ## the tables and plots of docs/benchmarks.md from the results in build/bench; `make docs` draws the plots again
	@$(BIN)/python benchmarks/page.py $(BENCH)

sim: setup ## simulated clusters, as long as asked: SIM="--seconds 600 --seed 100000", SIM="--seed 17 --trace", SIM=--switches
	@cd tests/simulation && PYTHONHASHSEED=0 PYTHONPATH=../plugins:../plugins/brokers:../plugins/programs:../faults:../checker:../chaos:../etcd ../../$(BIN)/python -m simulator.search $(SIM)

prove: setup ## the long proofs, with their records in docs/proof; some of them: PROVE="kills bit-flips"
	@$(BIN)/python .ci/prove.py $(PROVE)

chaos: setup ## real brokers and etcd under faults and load, judged by the checker
	@$(BIN)/python tests/chaos/chaos.py $(CHAOS)

image: setup ## the images as OCI archives in build/: fairlead.oci.tar and fairlead-etcd.oci.tar, without Docker
	@$(BIN)/python .ci/image.py $(IMAGE)

bench-latency: setup-bench ## latencies: alone, under load, on a large topic (about 12 minutes)
	@$(BIN)/python benchmarks/latency.py $(BENCH)

manifests: setup ## what charts and kubectl need of a checkout and is not in git: definitions, schema and boards in the charts, install.yaml, kustomize base, rules
	@$(BIN)/python .ci/manifests.py

docs: setup ## build the documentation site into site/; draws the measurements, the boards of Grafana (five minutes, needs root) and the console, unless they are drawn
	@$(BIN)/python benchmarks/page.py --cache build/no-new-results
	@[ -e docs/how-to/boards/fairlead-cluster.svg ] || $(BIN)/python docs/generate/board_pictures.py
	@[ -e docs/how-to/console/overview.png ] || $(BIN)/python docs/generate/console_pictures.py
	@.ci/docs.sh

release: setup ## wheel, sdist, charts, manifests, bill of materials and licences into dist/; fails for a licence that is not allowed
	@$(BIN)/python .ci/release.py

constraints: ## solve the dependencies again and write constraints/
	@.ci/constraints.sh

clean: ## remove what builds and tests left (not .venv)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
