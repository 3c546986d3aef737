# Two commands do what most people want:
#
#	sudo make up      installs what is needed, builds, and runs a node in the foreground
#	sudo make test    passes the tests
#
# make build | install | uninstall [PURGE=1] | bench | fuzz | test-long | clean; ARGS="..." is given to `space up`.

PREFIX ?= /usr/local
BUILD ?= build
JOBS ?= $(shell nproc)
SETUP ?= yes
ARGS ?=
STAGE := $(CURDIR)/$(BUILD)/stage

all: build

setup:
ifeq ($(SETUP),yes)
	@./setup.sh
endif

setup-test:
ifeq ($(SETUP),yes)
	@./setup.sh --test
endif

$(BUILD)/build.ninja: meson.build meson_options.txt
	@[ -f $@ ] || meson setup $(BUILD) . --prefix $(PREFIX) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log; touch $@

compile: $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(JOBS) --quiet

build: setup
	@$(MAKE) --no-print-directory compile

# The programs as they are installed, but inside the build folder: what the tests run.
stage: build
	@DESTDIR=$(STAGE) meson install -C $(BUILD) --no-rebuild --quiet

install: build
	@meson install -C $(BUILD) --no-rebuild --quiet
	@etc/users.sh add

up: install
	@exec $(PREFIX)/bin/space up $(ARGS)

test: setup-test stage
	@exec tests/run $(ARGS)

test-long: setup-test stage
	@exec tests/run --long $(ARGS)

bench: setup-test stage
	@exec bench/run $(ARGS)

fuzz: setup-test
	@exec tests/fuzz $(ARGS)

uninstall:
	@etc/uninstall.sh $(PREFIX) $(if $(PURGE),--purge)

clean:
	rm -rf $(BUILD) build-san build-fuzz

.PHONY: all setup setup-test compile build stage install up test test-long bench fuzz uninstall clean
