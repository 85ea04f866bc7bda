/* Stands in for libcuda.so.1 and libnvidia-ml.so.1, whose checkpoint part it plays by the rules of
 * NVIDIA's public reference: a state machine per process, arguments checked, illegal moves refused.
 *
 * Everything lies as small files beside the library:
 *   contexts   inner PIDs of the programs with CUDA; they close /dev/nvidia0 on SIGUSR1 and open it
 *              again on SIGUSR2, as the driver's own thread does in a real one
 *   state-PID  where a program stands
 *   calls      every call, its inner PID and result
 *   script     "NAME N CODE [STATE]": the Nth call of NAME fails; CODE may also be `hang`,
 *              `crash`, or `wait` (until there is a file `go`, then all is well)
 *   driver, gpus ("minor uuid total free model"), used ("host-PID minor bytes", -1: not told)
 *   mig        there if GPUs are split into slices
 *   loaded     there once a process has loaded it; pairs: UUIDs given to Restore, as hex
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, ILLEGAL_STATE = 401, NOT_SUPPORTED = 801 };

typedef struct { unsigned timeoutMs, reserved0; uint64_t reserved1[7]; } LockArgs;
typedef struct { unsigned char oldUuid[16], newUuid[16]; } Pair;
typedef struct {
    Pair *pairs;
    unsigned count;
    char reserved[52 - sizeof(Pair *)];
    uint64_t reserved1;
} RestoreArgs;
typedef struct { uint64_t reserved[8]; } NoArgs;

static int initialised;

static FILE *beside(const char *name, const char *mode) {
    Dl_info where;
    char path[4096], copy[4096];
    dladdr((void *)beside, &where);
    snprintf(copy, sizeof copy, "%s", where.dli_fname);
    snprintf(path, sizeof path, "%s/%s", dirname(copy), name);
    return fopen(path, mode);
}

__attribute__((constructor)) static void note_loading(void) {
    FILE *file = beside("loaded", "a");
    if (file) fclose(file);
}

static int inner_pid(int pid) {
    char path[64], line[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6)) found = atoi(strrchr(line, '\t') + 1);
    if (file) fclose(file);
    return found;
}

static int has_context(int inner) {
    int pid, found = 0;
    FILE *file = beside("contexts", "r");
    while (file && fscanf(file, "%d", &pid) == 1) found |= pid == inner;
    if (file) fclose(file);
    return found && inner;
}

static int read_state(int inner) {
    char name[32];
    int state = RUNNING;
    snprintf(name, sizeof name, "state-%d", inner);
    FILE *file = beside(name, "r");
    if (file && fscanf(file, "%d", &state) != 1) state = RUNNING;
    if (file) fclose(file);
    return state;
}

static void write_state(int inner, int state) {
    char name[32];
    snprintf(name, sizeof name, "state-%d", inner);
    FILE *file = beside(name, "w");
    fprintf(file, "%d", state);
    fclose(file);
}

static int log_call(const char *name, int inner, const char *result) {
    FILE *file = beside("calls", "a");
    fprintf(file, "%s %d %s\n", name, inner, result);
    fclose(file);
    return atoi(result);
}

static int calls_before(const char *name) {
    char line[512];
    int count = 0;
    size_t length = strlen(name);
    FILE *file = beside("calls", "r");
    while (file && fgets(line, sizeof line, file))
        count += !strncmp(line, name, length) && line[length] == ' ';
    if (file) fclose(file);
    return count;
}

static void wait_for_go(void) {
    struct timespec pause = {0, 2000000};
    FILE *file;
    while (!(file = beside("go", "r"))) nanosleep(&pause, NULL);
    fclose(file);
}

/* The scripted result of this call, 0 if it is to be played. */
static int scripted(const char *name, int inner) {
    char line[128], called[64], action[32];
    int nth, state, code = 0, now = calls_before(name) + 1;
    FILE *file = beside("script", "r");
    while (file && fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "%63s %d %31s %d", called, &nth, action, &state);
        if (fields < 3 || strcmp(called, name) || nth != now) continue;
        log_call(name, inner, action);
        if (fields == 4) write_state(inner, state);
        if (!strcmp(action, "hang")) for (;;) pause();
        if (!strcmp(action, "crash")) raise(SIGSEGV);
        if (!strcmp(action, "wait")) wait_for_go();
        code = atoi(action);
    }
    if (file) fclose(file);
    return code;
}

static int holds_gpu(int pid) {
    char path[64], link[512], target[512];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length > 0) {
            target[length] = 0;
            found |= !strcmp(target, "/dev/nvidia0");
        }
    }
    if (folder) closedir(folder);
    return found;
}

static void ask(int pid, int number, int wanted) {
    struct timespec pause = {0, 2000000};
    kill(pid, number);
    for (int turn = 0; turn < 5000 && holds_gpu(pid) != wanted; turn++) nanosleep(&pause, NULL);
}

static int move(const char *name, int pid, int valid, int from, int to, int number) {
    char result[32];
    int inner = inner_pid(pid), code = 0;
    if (!initialised) code = NOT_INITIALIZED;
    else if (!has_context(inner) || !valid) code = INVALID_VALUE;
    else if ((code = scripted(name, inner))) return code;
    else if (read_state(inner) != from) code = ILLEGAL_STATE;
    if (!code && number) ask(pid, number, number == SIGUSR2);
    if (!code) write_state(inner, to);
    snprintf(result, sizeof result, "%d", code);
    return log_call(name, inner, result);
}

static int is_zero(const void *start, size_t length) {
    const char *bytes = start;
    while (length--) if (bytes[length]) return 0;
    return 1;
}

int cuInit(unsigned flags) {
    int code = scripted("Init", 0);
    initialised = !code && !flags;
    return code;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE"
          : code == 304           ? "CUDA_ERROR_OPERATING_SYSTEM"
          : code == 2             ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name ? 0 : INVALID_VALUE;
}

#ifndef OLD_DRIVER
int cuCheckpointProcessGetState(int pid, int *state) {
    int inner = inner_pid(pid);
    if (!initialised) return NOT_INITIALIZED;
    if (!has_context(inner)) return INVALID_VALUE;
    int code = scripted("GetState", inner);
    *state = read_state(inner);
    return code ? code : log_call("GetState", inner, "0");
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    if (!initialised) return NOT_INITIALIZED;
    *tid = pid;
    return has_context(inner_pid(pid)) ? 0 : INVALID_VALUE;
}

int cuCheckpointProcessLock(int pid, LockArgs *args) {
    int valid = args && args->timeoutMs && !args->reserved0 && is_zero(args->reserved1, 56);
    return move("Lock", pid, valid, RUNNING, LOCKED, 0);
}

int cuCheckpointProcessCheckpoint(int pid, NoArgs *args) {
    return move("Checkpoint", pid, is_zero(args, sizeof *args), LOCKED, CHECKPOINTED, SIGUSR1);
}

int cuCheckpointProcessRestore(int pid, RestoreArgs *args) {
    int valid = is_zero(args->reserved, sizeof args->reserved) && !args->reserved1;
    for (unsigned number = 0; number < args->count; number++) {
        FILE *file = beside("pairs", "a");
        const unsigned char *bytes = (const unsigned char *)(args->pairs + number);
        for (unsigned byte = 0; byte < sizeof(Pair); byte++) fprintf(file, "%02x", bytes[byte]);
        fprintf(file, "\n");
        fclose(file);
    }
    return move("Restore", pid, valid, CHECKPOINTED, LOCKED, SIGUSR2);
}

int cuCheckpointProcessUnlock(int pid, NoArgs *args) {
    return move("Unlock", pid, is_zero(args, sizeof *args), LOCKED, RUNNING, 0);
}
#endif

/* NVML */

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, slice; } Running;
typedef struct { unsigned minor; char uuid[96], model[96]; Memory memory; } Gpu;

static Gpu gpus[16];
static unsigned gpu_count;

int nvmlInitWithFlags(unsigned flags) {
    FILE *file = beside("gpus", "r");
    Gpu *gpu = gpus;
    (void)flags;
    if (!file) return 9; /* DRIVER_NOT_LOADED */
    while (fscanf(file, "%u %95s %llu %llu %95[^\n]", &gpu->minor, gpu->uuid, &gpu->memory.total,
                  &gpu->memory.free, gpu->model) == 5) {
        gpu->memory.used = gpu->memory.total - gpu->memory.free;
        gpu++;
    }
    gpu_count = gpu - gpus;
    fclose(file);
    return 0;
}

int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Some Error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    FILE *file = beside("driver", "r");
    char version[80] = "";
    if (file && fscanf(file, "%79s", version) != 1) version[0] = 0;
    if (file) fclose(file);
    snprintf(text, length, "%s", version);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = gpu_count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) { *gpu = gpus + index; return 0; }
int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) { *minor = gpu->minor; return 0; }
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return 0;
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->model);
    return 0;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) { *memory = gpu->memory; return 0; }

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    FILE *file = beside("mig", "r");
    (void)gpu;
    *current = *pending = file != NULL;
    if (file) fclose(file);
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Running *running) {
    unsigned pid, minor, found = 0, room = *count;
    long long used;
    FILE *file = beside("used", "r");
    while (file && fscanf(file, "%u %u %lld", &pid, &minor, &used) == 3) {
        if (minor != gpu->minor) continue;
        if (found < room && running) running[found] = (Running){pid, (unsigned long long)used, 0, 0};
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? 7 : 0; /* INSUFFICIENT_SIZE */
}
