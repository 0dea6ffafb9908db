# Tandem. `make help` lists the targets; README.md says what they are for.

# ---- what can be chosen on the command line -------------------------------------------------
BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
AR ?= ar
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
DESTDIR ?=
READLINE ?= 1
DEPS ?= 1
SAN ?=
SLIM ?= 0
FUZZ_SECONDS ?= 20
TEST_TIMEOUT ?= 1200
SAN_TIMEOUT ?= 1800
TEST_JOBS ?= 2
GOLDEN_DIR ?= tests/data/golden
CASES_DIR ?= tests/data/cases
DEMO_WEIGHTS ?=
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))

# Every core compiles, unless -j says otherwise.
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

OUT := $(BUILD)$(if $(SAN),/$(SAN))
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
ifeq ($(SAN)$(filter x86_64 aarch64,$(ARCH)),$(ARCH))
# nvcc on the PATH may be a script or a link: it says itself where its toolkit lies. Without the
# headers the CPU build is made.
CUDA_TOP := $(if $(NVCC),$(realpath $(shell $(NVCC) --dryrun -x cu -c /dev/null 2>&1 | \
	sed -n 's/^\#\$$ TOP=//p')))
CUDA ?= $(if $(wildcard $(CUDA_TOP)/include/cuda_runtime_api.h /usr/include/cuda_runtime_api.h),1,0)
else
CUDA ?= 0
endif

# ---- packages: checked (and installed) once, flags kept in a generated file -------------------
QUIET_GOALS := clean help check-aarch64
GOALS := $(or $(MAKECMDGOALS),all)
ifneq ($(filter-out $(QUIET_GOALS),$(GOALS)),)
include $(BUILD)/deps.mk
ifneq ($(findstring test,$(GOALS))$(filter soak asan tsan fuzz fuzz-run bench demo-eval,$(GOALS))$(filter 1,$(GPU_TESTS)),)
include $(BUILD)/deps-test.mk
endif
endif

DEPS_ENV = CC='$(CC)' PKG_CONFIG='$(PKG_CONFIG)' DEPS='$(DEPS)' READLINE='$(READLINE)'

.PHONY: all
all: programs

$(BUILD)/deps.mk: .ci/deps
	@mkdir -p $(@D)
	@$(DEPS_ENV) .ci/deps build $@
# One after the other: two installations at once would wait for the same lock and fail.
$(BUILD)/deps-test.mk: .ci/deps | $(BUILD)/deps.mk
	@mkdir -p $(@D)
	@$(DEPS_ENV) .ci/deps test $@

# ---- flags -----------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wshadow -Wconversion -Wvla -Werror
# Cutting a text to its field with snprintf is meant here, and vectors never cross a folder's border
# as arguments; only gcc knows these warnings.
WARN += $(if $(findstring clang,$(CC)),,-Wno-format-truncation -Wno-psabi)
OPT ?= -O2 -g
# Floating point is never contracted: the same row must give the same bits on every code path.
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE -I. $(WARN) $(OPT) -fno-strict-aliasing -ffp-contract=off \
	-fno-math-errno -fPIE -fvisibility=hidden -fstack-protector-strong -pthread \
	-ffile-prefix-map=$(CURDIR)=. $(DEFS) $(SAN_FLAGS) $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = -pie -pthread -Wl,--as-needed -Wl,--disable-new-dtags -Wl,-z,relro,-z,now $(SAN_FLAGS) $(LDFLAGS)
DEFS := $(if $(filter 0,$(READLINE)),-DTANDEM_NO_READLINE) $(if $(filter 1,$(CUDA)),-DTANDEM_CUDA)
SAN_FLAGS :=
ifeq ($(SAN),address)
SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
ifeq ($(SAN),thread)
SAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer
endif
ifeq ($(SAN),fuzz)
SAN_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
endif

# One instruction set per file, chosen by the end of its name; the code picks at run time.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
ISA_vnni := $(ISA_avx512) -mavx512vnni
ISA_neondot := -march=armv8.2-a+dotprod
ISA_i8mm := -march=armv8.2-a+dotprod+i8mm
isa_flags = $(if $(filter %_avx2.c,$1),$(ISA_avx2))$(if $(filter %_avxvnni.c,$1),$(ISA_avxvnni)) \
	$(if $(filter %_avx512.c,$1),$(ISA_avx512)) \
	$(if $(filter %_vnni.c %_avx512vnni.c,$1),$(ISA_vnni)) \
	$(if $(filter %_neondot.c %_neon_dot.c,$1),$(ISA_neondot)) \
	$(if $(filter %_neon_i8mm.c,$1),$(ISA_i8mm))
X86_ONLY := %_avx2.c %_avxvnni.c %_avx512.c %_vnni.c %_avx512vnni.c
ARM_ONLY := %_neon.c %_neondot.c %_neon_dot.c %_neon_i8mm.c
for_arch = $(if $(filter x86_64,$(ARCH)),$(filter-out $(ARM_ONLY),$1),$(if \
	$(filter aarch64,$(ARCH)),$(filter-out $(X86_ONLY),$1),$(filter-out $(X86_ONLY) $(ARM_ONLY),$1)))

# ---- one archive per folder --------------------------------------------------------------------
LIB_NAMES := tui setup api run model text dist weights kernels base
SRC_base := $(wildcard engine/base/*.c)
SRC_kernels := $(call for_arch,$(wildcard kernels/*.c kernels/*/*.c))
SRC_weights := $(wildcard engine/weights/*.c)
SRC_text := $(wildcard engine/text/*.c)
SRC_model := $(wildcard engine/model/*.c)
SRC_run := $(wildcard engine/run/*.c)
SRC_dist := $(wildcard engine/dist/*.c)
SRC_api := $(wildcard engine/api/*.c)
SRC_setup := $(filter-out setup/node.c,$(wildcard setup/*.c))
SRC_tui := $(filter-out tui/main.c,$(wildcard tui/*.c))
SRC_harness := $(wildcard tests/harness/*.c)
objs = $(patsubst %.c,$(OUT)/obj/%.o,$1)
ARCHIVES := $(foreach l,$(LIB_NAMES),$(OUT)/lib/lib$l.a)
ENGINE_ARCHIVES := $(filter-out %/libtui.a %/libsetup.a,$(ARCHIVES))

$(OUT)/flags.stamp: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS_ALL)' | cmp -s - $@ || echo '$(CC) $(CFLAGS_ALL)' > $@

OPT_FOR = $(if $(filter kernels/%,$1),$(if $(SAN),,-O3))
$(OUT)/obj/%.o: %.c $(OUT)/flags.stamp
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(CFLAGS_ALL) $(call OPT_FOR,$<) $(call isa_flags,$<) $(if $(filter 1,$(CUDA)),$(CUDA_INC)) \
	    -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@.$$$$ && mv -f $@.$$$$ $@ || { rm -f $@.$$$$; exit 1; }

# The list file makes an archive again when a source file goes away or comes.
define archive_rule
$(OUT)/lib/$1.list: FORCE
	@mkdir -p $$(@D)
	@echo '$$(sort $$(SRC_$1))' | cmp -s - $$@ || echo '$$(sort $$(SRC_$1))' > $$@
$(OUT)/lib/lib$1.a: $(OUT)/lib/$1.list $$(call objs,$$(SRC_$1))
	@rm -f $$@.$$$$$$$$ && $(AR) rcsD $$@.$$$$$$$$ $$(call objs,$$(SRC_$1)) && mv -f $$@.$$$$$$$$ $$@
-include $$(patsubst %.c,$(OUT)/obj/%.d,$$(SRC_$1))
endef
$(foreach l,$(LIB_NAMES),$(eval $(call archive_rule,$l)))

-include $(patsubst %.c,$(OUT)/obj/%.d,$(SRC_harness))

# ---- CUDA --------------------------------------------------------------------------------------
GPU_ARCHS ?= $(if $(filter 1,$(SLIM)),90a,90a 121)
ifneq ($(filter 90,$(GPU_ARCHS)),)
$(error GPU_ARCHS=90 builds no wgmma, which an H200 is launched with: say 90a)
endif
ifeq ($(CUDA),1)
CUDA_INC := -isystem $(CUDA_TOP)/include
CU_SRC := $(wildcard kernels/*.cu kernels/*/*.cu) $(shell find engine -name '*.cu' 2>/dev/null)
CU_OBJ := $(patsubst %.cu,$(OUT)/obj/%.cu.o,$(CU_SRC))
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. -ccbin $(or $(CXX_FOR_CUDA),g++) --fmad=false \
	-Xcompiler -fPIE,-Wall,-ffp-contract=off,-ffile-prefix-map=$(CURDIR)=. \
	$(foreach a,$(GPU_ARCHS),-gencode arch=compute_$a,code=sm_$a) -DTANDEM_CUDA $(NVCCFLAGS)
CUDA_ARCHIVE := $(if $(CU_SRC),$(OUT)/lib/libcuda_kernels.a)
CUDA_LIBS = $(if $(CU_SRC),-L$(CUDA_TOP)/lib64 -lcudart_static -lstdc++ -lrt -ldl)
$(OUT)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  nvcc  $<"
	@$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@.$$$$ && mv -f $@.$$$$ $@ \
	    || { rm -f $@.$$$$; exit 1; }
$(OUT)/lib/libcuda_kernels.a: $(CU_OBJ)
	@mkdir -p $(@D)
	@rm -f $@.$$$$ && $(AR) rcsD $@.$$$$ $(CU_OBJ) && mv -f $@.$$$$ $@
-include $(CU_OBJ:.o=.d)
endif

comma := ,
# ---- programs ----------------------------------------------------------------------------------
PROGRAMS := $(if $(wildcard tui/main.c),$(OUT)/tandem) $(if $(wildcard engine/daemon.c),$(OUT)/tandemd) \
	$(if $(wildcard setup/node.c),$(OUT)/tandem-node)
.PHONY: programs
programs: $(PROGRAMS)

# The build id is linked into programs only, so a commit does not rebuild the tests.
BUILD_ID := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
$(OUT)/build_id.c: FORCE
	@mkdir -p $(@D)
	@echo 'const char tandem_build_id[] = "$(BUILD_ID)";' | cmp -s - $@ || \
	    echo 'const char tandem_build_id[] = "$(BUILD_ID)";' > $@
$(OUT)/build_id.o: $(OUT)/build_id.c
	@$(CC) -O2 -fPIE -c $< -o $@

# The old form of the run path: it also holds for what the libraries themselves need.
RPATH := -Wl,-rpath,'$$ORIGIN/../lib'
link = @echo "  link  $@"; $(CC) $(LDFLAGS_ALL) $(RPATH) -o $@.$$$$ $(filter %.o,$^) -Wl,--start-group \
	$(filter %.a,$^) -Wl,--end-group $1 -lm && mv -f $@.$$$$ $@ || { rm -f $@.$$$$; exit 1; }
$(OUT)/tandem: $(OUT)/obj/tui/main.o $(OUT)/build_id.o $(ARCHIVES)
	$(call link,$(LIBS_tandem))
DAEMON_OBJ := $(call objs,$(wildcard engine/daemon*.c))
$(OUT)/tandemd: $(DAEMON_OBJ) $(OUT)/build_id.o $(ENGINE_ARCHIVES) $(CUDA_ARCHIVE)
	$(call link,$(LIBS_tandemd) $(CUDA_LIBS))
NODE_ARCHIVES := $(foreach l,setup dist model weights kernels base,$(OUT)/lib/lib$l.a)
$(OUT)/tandem-node: $(OUT)/obj/setup/node.o $(OUT)/build_id.o $(NODE_ARCHIVES)
	$(call link,$(LIBS_node))
-include $(OUT)/obj/tui/main.d $(DAEMON_OBJ:.o=.d) $(OUT)/obj/setup/node.d
# The daemon with a switch for faults: for the soak only, nobody else links it.
$(OUT)/tests/soak/tandemd-faults: $(DAEMON_OBJ) $(OUT)/obj/tests/soak/faults.o $(OUT)/build_id.o \
		$(ENGINE_ARCHIVES) $(CUDA_ARCHIVE)
	@mkdir -p $(@D)
	$(call link,$(LIBS_tandemd) $(CUDA_LIBS) -Wl$(comma)--wrap=source_from_model$(comma)--wrap=model_open)
-include $(OUT)/obj/tests/soak/faults.d

.PHONY: run
run: programs
	@$(OUT)/tandem $(ARGS)

# ---- tests -------------------------------------------------------------------------------------
TEST_DIRS := soak unit kernels api screen setup e2e golden
TEST_SRC := $(foreach d,$(TEST_DIRS) long,$(wildcard tests/$d/test_*.c))
BENCH_SRC := $(wildcard tests/bench/bench_*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
GPU_SRC := $(if $(filter 1,$(CUDA)),$(wildcard tests/gpu/test_*.c tests/gpu/bench_*.c))
# The rest of a test folder is shared by its tests.
GPU_SHARED := $(filter-out $(GPU_SRC),$(wildcard tests/gpu/*.c))
GPU_SHARED_OBJ := $(call objs,$(GPU_SHARED)) \
	$(patsubst %.cu,$(OUT)/obj/%.cu.o,$(wildcard tests/gpu/*.cu))
-include $(GPU_SHARED_OBJ:.o=.d)
TEST_BIN := $(patsubst %.c,$(OUT)/%,$(TEST_SRC))
BENCH_BIN := $(patsubst %.c,$(OUT)/%,$(BENCH_SRC))
FUZZ_BIN := $(patsubst %.c,$(OUT)/%,$(FUZZ_SRC))
GPU_BIN := $(patsubst %.c,$(OUT)/%,$(GPU_SRC))

# A test links the folders whose headers it includes, and what those stand on, so that one broken
# folder does not stop the tests of the others.
NEEDS_base := base
NEEDS_kernels := kernels base
NEEDS_text := text base
NEEDS_dist := dist kernels base
NEEDS_weights := weights model dist text kernels base
NEEDS_model := $(NEEDS_weights)
NEEDS_run := run $(NEEDS_model)
NEEDS_api := api $(NEEDS_run)
NEEDS_engine := $(NEEDS_api)
NEEDS_setup := setup $(NEEDS_api)
NEEDS_tui := tui $(NEEDS_setup)
TEST_PAIRS := $(shell grep -HoE '^.include "(engine/[a-z]+|kernels|setup|tui|tests/harness/[a-z0-9_]+|tests/[a-z]+/test_[a-z0-9_]+\.c)' \
	$(TEST_SRC) $(BENCH_SRC) $(FUZZ_SRC) $(GPU_SRC) $(SRC_harness) $(wildcard tests/harness/*.h) /dev/null | \
	sed -E 's/:.*"(engine\/)?/:/' | sort -u)
included_by = $(patsubst $1:%,%,$(filter $1:%,$(TEST_PAIRS)))
# Shared files of tests/harness that a test includes (or the test that it is made of: tests/gpu), and
# those that they include.
tests_of = $1 $(filter tests/%.c,$(call included_by,$1))
harness_step = $(sort $1 $(foreach h,$1,$(filter tests/harness/%,$(call included_by,$h.c) \
	$(call included_by,$h.h))))
harness_of = $(call harness_step,$(call harness_step,$(filter tests/harness/%,$(foreach t,$(call tests_of,$1),$(call included_by,$t)))))
harness_objs = $(call objs,$(filter $(addsuffix .c,$(call harness_of,$1)),$(SRC_harness)))
folders_of = $(sort $(filter-out tests/%,$(call included_by,$1) \
	$(foreach h,$(call harness_of,$1),$(call included_by,$h.c) $(call included_by,$h.h))))
libs_of = $(patsubst %,$(OUT)/lib/lib%.a,$(sort base $(foreach f,$(call folders_of,$1),$(NEEDS_$f))))

define test_rule
$(OUT)/$(basename $1): $(OUT)/obj/$(basename $1).o $(call harness_objs,$1) $(call libs_of,$1) $2
	@mkdir -p $$(@D)
	$$(call link,$$(LIBS_test) $3)
-include $(OUT)/obj/$(basename $1).d
endef
# Nothing but the daemon and the GPU tests links device code; the other tests must not wait for nvcc.
$(foreach t,$(TEST_SRC) $(BENCH_SRC),$(eval $(call test_rule,$t)))
$(foreach t,$(FUZZ_SRC),$(eval $(call test_rule,$t,,-fsanitize=fuzzer)))
$(foreach t,$(GPU_SRC),$(eval $(call test_rule,$t,$(GPU_SHARED_OBJ) $(CUDA_ARCHIVE) $(ENGINE_ARCHIVES),$$(CUDA_LIBS))))

RUNNER = TANDEM_SOURCE_DIR='$(CURDIR)' TEST_TIMEOUT=$(TEST_TIMEOUT) TEST_JOBS=$(TEST_JOBS) OUT=$(OUT) GOLDEN_DIR='$(GOLDEN_DIR)' \
	CASES_DIR='$(CASES_DIR)' DEMO_WEIGHTS='$(DEMO_WEIGHTS)' tests/harness/run
bins_in = $(filter $(addprefix $(OUT)/tests/,$(addsuffix /%,$1)),$(TEST_BIN))
scripts_in = $(foreach d,$1,$(wildcard tests/$d/test_*.sh))
CASES_BIN := $(foreach t,$(TEST_BIN),$(if $(findstring /test_cases_,$t),$t))

SOAK_BIN := $(call bins_in,soak)
$(filter %/test_soak_http,$(SOAK_BIN)): | $(OUT)/tests/soak/tandemd-faults
.PHONY: soak test test-binaries test-long test-golden test-cases test-gpu asan tsan fuzz bench demo-eval
test-binaries: $(call bins_in,$(TEST_DIRS))
test: programs $(call bins_in,$(TEST_DIRS))
	@$(RUNNER) $(call bins_in,$(TEST_DIRS)) $(call scripts_in,$(TEST_DIRS))
test-long: programs $(TEST_BIN)
	@TANDEM_LONG=1 TEST_TIMEOUT=3600 $(RUNNER) $(TEST_BIN) $(call scripts_in,$(TEST_DIRS) long)
# Random load against replies made alone, SECONDS long, an hour by default (test: two minutes): first
# the real daemon over HTTP, then the engine alone over a stand-in model.
soak: programs $(SOAK_BIN)
	@for t in $(SOAK_BIN); do SOAK_SECONDS=$(if $(filter command%,$(origin SECONDS)),$(SECONDS),3600) \
	    OUT=$(OUT) DEMO_WEIGHTS='$(DEMO_WEIGHTS)' $$t || exit 1; done
test-golden: $(filter-out $(CASES_BIN),$(call bins_in,golden))
	@$(RUNNER) $^
test-cases: programs $(CASES_BIN)
	@$(RUNNER) $(CASES_BIN)
ifeq ($(CUDA),1)
test-gpu: programs $(GPU_BIN)
	@TEST_JOBS=1 $(RUNNER) $(filter $(OUT)/tests/gpu/test_%,$^)
else
test-gpu:
	@echo "There is no nvcc here (or CUDA=0): the GPU tests cannot be built."; exit 1
endif
asan:
	@$(MAKE) --no-print-directory SAN=address CUDA=0 TEST_TIMEOUT=$(SAN_TIMEOUT) test
tsan:
	@TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 $(TSAN_OPTIONS)" \
	    $(MAKE) --no-print-directory SAN=thread CUDA=0 TEST_TIMEOUT=$(SAN_TIMEOUT) test
fuzz:
	@DEPS='$(DEPS)' .ci/deps fuzz
	@$(MAKE) --no-print-directory SAN=fuzz CUDA=0 CC=clang BUILD='$(BUILD)' fuzz-run
.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@.ci/fuzz $(FUZZ_SECONDS) $(FUZZ_BIN)

bench: programs $(BENCH_BIN)
	@echo "# $(BUILD_ID), $$(uname -m), $$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $$(nproc) cores"
	@for b in $(BENCH_BIN) $(wildcard tests/bench/bench_*.sh); do OUT=$(OUT) $$b || exit 1; done
demo-eval: programs $(BENCH_BIN) $(TEST_BIN)
	@OUT=$(OUT) GOLDEN_DIR='$(GOLDEN_DIR)' DEMO_WEIGHTS='$(DEMO_WEIGHTS)' $(OUT)/tests/bench/bench_demo_eval

# ---- to hand on --------------------------------------------------------------------------------
COMPLETION_DIRS := bash-completion/completions zsh/site-functions fish/vendor_completions.d
.PHONY: bundle install
bundle: programs $(if $(filter 1,$(GPU_TESTS)),$(GPU_BIN))
	@SLIM=$(SLIM) GPU_TESTS=$(GPU_TESTS) .ci/bundle $(OUT) $(OUT)/bundle
install: programs
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/tandem
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin/
	@if [ -d templates ]; then cp -r templates $(DESTDIR)$(PREFIX)/share/tandem/; fi
	@for page in $(wildcard man/*.[1-8]); do \
	    section=$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}; \
	    install -d $$section && install -m 644 $$page $$section/ || exit 1; done
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,$(COMPLETION_DIRS) doc/tandem)
	install -m 644 templates/completions/tandem.bash $(DESTDIR)$(PREFIX)/share/$(word 1,$(COMPLETION_DIRS))/tandem
	install -m 644 templates/completions/tandem.zsh $(DESTDIR)$(PREFIX)/share/$(word 2,$(COMPLETION_DIRS))/_tandem
	install -m 644 templates/completions/tandem.fish $(DESTDIR)$(PREFIX)/share/$(word 3,$(COMPLETION_DIRS))/
	install -m 644 README.md LICENSE NOTICE $(DESTDIR)$(PREFIX)/share/doc/tandem/

# ---- to look after -----------------------------------------------------------------------------
.PHONY: lint check-aarch64 clean help FORCE
# make itself knows a LINT of its own: a name is only what the command line says.
ifneq ($(origin LINT),command line)
LINT :=
endif
lint:
	@DEPS='$(DEPS)' .ci/deps lint
	@CC='$(CC)' PKG_CFLAGS='$(PKG_CFLAGS)' CUDA_INC='$(CUDA_INC)' .ci/lint $(LINT)
check-aarch64:
	@DEPS='$(DEPS)' .ci/check-aarch64 $(BUILD)/aarch64
clean:
	rm -rf $(BUILD)
FORCE:
help:
	@echo "make              all programs into $(BUILD)/"
	@echo "make run          build and open Tandem (ARGS= for its arguments)"
	@echo "make test         all tests that need neither a GPU nor the net; test-long: the slow ones too"
	@echo "make test-golden  golden vectors, GOLDEN_DIR=DIR for others of the same form"
	@echo "make test-cases   recorded field cases, CASES_DIR=DIR likewise; DEMO_WEIGHTS=DIR for both"
	@echo "make test-gpu     the tests on a GPU (needs nvcc and a GPU)"
	@echo "make asan tsan    the tests under the sanitizers"
	@echo "make fuzz         every fuzzer for FUZZ_SECONDS (default $(FUZZ_SECONDS)) under clang"
	@echo "make bench        one line per measured case; demo-eval: the demo model against its answers"
	@echo "make bundle       a folder that runs anywhere: $(BUILD)/bundle (SLIM=1 without NVIDIA's libraries)"
	@echo "make install      PREFIX=$(PREFIX), DESTDIR="
	@echo "make lint         layout, size, banned calls, include arrow, headers, words, clang-tidy (LINT=name: one)"
	@echo "make check-aarch64  cross-compile and run unit and kernel tests under qemu"
	@echo "make clean        remove $(BUILD)/"
	@echo "Variables: BUILD=, CC=gcc|clang, READLINE=0 (plain line editor), CUDA=0, DEPS=0 (install nothing)"
