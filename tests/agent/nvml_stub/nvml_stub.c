/* A stand-in for NVIDIA's libnvidia-ml.so.1 that replays a scenario, so that pynvml itself runs without a GPU.
 *
 * The scenario is a file of `key=value` lines, named by NVML_STUB_SCENARIO and read again whenever it was replaced: a
 * number or text for a key below, `return.FUNCTION` the code that a function returns instead of doing anything (777: it
 * never returns). Power is a known function of CLOCK_MONOTONIC, so that energy is known exactly:
 *     P(t) = base + amplitude * sin(2 pi t / period)      E(t) = base * t + amplitude * period / 2 pi * (1 - cos(...))
 * with t in seconds since the clock's zero. The counter shows E at the last multiple of its refresh period.
 *
 * Signatures follow nvml.h; only what the agent calls is here.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, HANGS = 777 };
enum { MOST_KEYS = 128, KEY_SIZE = 64, VALUE_SIZE = 192 };

typedef struct { unsigned index; } Device;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char keys[MOST_KEYS][KEY_SIZE], values[MOST_KEYS][VALUE_SIZE];
static int known;
static struct stat seen;
static unsigned long energy_calls;
static Device devices[16];

static void load(void) {
    const char *path = getenv("NVML_STUB_SCENARIO");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) {
        known = 0;
        return;
    }
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    char line[KEY_SIZE + VALUE_SIZE];
    known = 0;
    while (known < MOST_KEYS && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *equals = strchr(line, '=');
        if (equals == NULL)
            continue;
        *equals = '\0';
        snprintf(keys[known], KEY_SIZE, "%.*s", KEY_SIZE - 1, line);
        snprintf(values[known], VALUE_SIZE, "%.*s", VALUE_SIZE - 1, equals + 1);
        known++;
    }
    fclose(file);
    seen = now;
}

/* Copies a key's value, or what stands for it, and tells whether there was one. */
static int text(const char *key, const char *otherwise, char *out, size_t size) {
    int found = 0;
    pthread_mutex_lock(&lock);
    load();
    for (int i = 0; i < known; i++)
        if (strcmp(keys[i], key) == 0) {
            snprintf(out, size, "%s", values[i]);
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    if (!found)
        snprintf(out, size, "%s", otherwise);
    return found;
}

static double number(const char *key, double otherwise) {
    char value[VALUE_SIZE];
    return text(key, "", value, sizeof value) ? strtod(value, NULL) : otherwise;
}

/* The key of one device: "uuid" is device 0's, "uuid.1" device 1's. */
static const char *key_of(const char *key, unsigned index, char *out) {
    if (index == 0)
        return key;
    snprintf(out, KEY_SIZE, "%s.%u", key, index);
    return out;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Energy in mJ (power in mW) from the clock's zero to t. */
static double energy(double t) {
    double period = number("period_ms", 1000) / 1000, turn = 2 * M_PI / period;
    return number("power_mw", 100000) * t + number("amplitude_mw", 0) / turn * (1 - cos(turn * t));
}

static double power(double t) {
    double turn = 2 * M_PI / (number("period_ms", 1000) / 1000);
    return number("power_mw", 100000) + number("amplitude_mw", 0) * sin(turn * t);
}

static int result_of(const char *function) {
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "return.%s", function);
    return (int)number(key, SUCCESS);
}

/* Begins every function: ends it with the scenario's return code, or because the GPU is lost. */
#define BEGIN                                                                                                          \
    do {                                                                                                               \
        int code = result_of(__func__);                                                                                \
        while (code == HANGS)                                                                                          \
            pause();                                                                                                   \
        if (code != SUCCESS)                                                                                           \
            return code;                                                                                               \
    } while (0)
#define BEGIN_DEVICE                                                                                                   \
    BEGIN;                                                                                                             \
    if (number("lost", 0) != 0 || energy_calls > number("lost_after_calls", 1e18))                                     \
        return GPU_IS_LOST

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN; return SUCCESS; }
int nvmlInit_v2(void) { BEGIN; return SUCCESS; }
int nvmlShutdown(void) { BEGIN; return SUCCESS; }

const char *nvmlErrorString(int result) { (void)result; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    BEGIN;
    text("driver", "550.54.14", out, size);
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    BEGIN;
    text("nvml", "12.550.54.14", out, size);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN;
    *count = (unsigned)number("count", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    char key[KEY_SIZE];
    BEGIN;
    if (index >= (unsigned)number("count", 1) || index >= sizeof devices / sizeof *devices)
        return NOT_FOUND;
    if (number(key_of("unreachable", index, key), 0) != 0)
        return GPU_IS_LOST;
    devices[index].index = index;
    *device = &devices[index];
    return SUCCESS;
}

static int text_of(Device *device, const char *name, const char *otherwise, char *out, unsigned size) {
    char key[KEY_SIZE];
    text(key_of(name, device->index, key), otherwise, out, size);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    char otherwise[KEY_SIZE];
    BEGIN_DEVICE;
    snprintf(otherwise, sizeof otherwise, "GPU-00000000-0000-0000-0000-%012u", device->index);
    return text_of(device, "uuid", otherwise, out, size);
}

int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    BEGIN_DEVICE;
    return text_of(device, "name", "NVIDIA GeForce RTX 4060 Ti", out, size);
}

int nvmlDeviceGetVbiosVersion(Device *device, char *out, unsigned size) {
    BEGIN_DEVICE;
    return text_of(device, "vbios", "95.06.25.00.01", out, size);
}

#define NUMBER(FUNCTION, KEY, OTHERWISE)                                                                               \
    int FUNCTION(Device *device, unsigned *out) {                                                                      \
        char key[KEY_SIZE];                                                                                            \
        BEGIN_DEVICE;                                                                                                  \
        *out = (unsigned)number(key_of(KEY, device->index, key), OTHERWISE);                                           \
        return SUCCESS;                                                                                                \
    }

NUMBER(nvmlDeviceGetArchitecture, "architecture", 8)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 8)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)
NUMBER(nvmlDeviceGetPerformanceState, "p_state", 2)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "limit_mw", 165000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "default_limit_mw", 165000)

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *out) {
    BEGIN_DEVICE;
    (void)device;
    *out = (unsigned)(type == 1 ? number("sm_clock", 2535) : number("memory_clock", 9001));
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    BEGIN_DEVICE;
    (void)device, (void)sensor;
    *out = (unsigned)number("temperature", 61);
    return SUCCESS;
}

static int clock_events(unsigned long long *out) {
    char value[VALUE_SIZE];
    text("events", "0", value, sizeof value);
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *out) {
    BEGIN_DEVICE;
    (void)device;
    return clock_events(out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out) {
    BEGIN_DEVICE;
    (void)device;
    return clock_events(out);
}

int nvmlDeviceGetViolationStatus(Device *device, unsigned policy, unsigned long long out[2]) {
    BEGIN_DEVICE;
    (void)device;
    out[0] = 0;
    out[1] = (unsigned long long)(policy == 0 ? number("violation_power_ns", 0) : number("violation_thermal_ns", 0));
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long out[3]) {
    char key[KEY_SIZE];
    BEGIN_DEVICE;
    double total = number(key_of("memory", device->index, key), 17175674880.0), used = number("memory_used", 1e9);
    out[0] = (unsigned long long)total;
    out[1] = (unsigned long long)(total - used);
    out[2] = (unsigned long long)used;
    return SUCCESS;
}

static int modes(const char *key, unsigned *current, unsigned *pending) {
    double mode = number(key, -1);
    if (mode < 0)
        return NOT_SUPPORTED;
    *current = *pending = (unsigned)mode;
    return SUCCESS;
}

int nvmlDeviceGetEccMode(Device *device, unsigned *current, unsigned *pending) {
    BEGIN_DEVICE;
    (void)device;
    return modes("ecc", current, pending);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    BEGIN_DEVICE;
    (void)device;
    return modes("mig", current, pending);
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned out[2]) {
    BEGIN_DEVICE;
    (void)device;
    out[0] = out[1] = (unsigned)number("utilization", 0);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *out) {
    energy_calls++;
    BEGIN_DEVICE;
    (void)device;
    double refresh = number("refresh_ms", 20) / 1000, now = seconds(), stuck = number("stuck_at_mj", -1);
    *out = (unsigned long long)(energy(floor(now / refresh) * refresh) - number("back_mj", 0));
    if (stuck >= 0)
        *out = (unsigned long long)stuck;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *out) {
    BEGIN_DEVICE;
    (void)device;
    double now = seconds();
    *out = (unsigned)(number("averaged", 1) != 0 ? energy(now) - energy(now - 1) : power(now));
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *out) {
    BEGIN_DEVICE;
    (void)device;
    for (int i = 0; i < count; i++) {
        out[i].type = 1;
        out[i].result = (unsigned)(out[i].field == 186 ? number("instant_result", SUCCESS) : NOT_SUPPORTED);
        out[i].value.u = (unsigned)power(seconds());
    }
    return SUCCESS;
}

/* Process ids of a comma-separated list, in which "self" is the caller's own. */
static int processes(Device *device, const char *name, const char *otherwise, unsigned *count, Process *out) {
    char key[KEY_SIZE], list[VALUE_SIZE], *rest = list, *item;
    unsigned room = *count, found = 0;
    text(key_of(name, device->index, key), device->index == 0 ? otherwise : "", list, sizeof list);
    while ((item = strsep(&rest, ",")) != NULL) {
        if (*item == '\0')
            continue;
        if (out != NULL && found < room) {
            memset(&out[found], 0, sizeof out[found]);
            out[found].pid = strcmp(item, "self") == 0 ? (unsigned)getpid() : (unsigned)strtoul(item, NULL, 10);
        }
        found++;
    }
    *count = found;
    return found > (out == NULL ? 0 : room) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out) {
    BEGIN_DEVICE;
    return processes(device, "compute_pids", "self", count, out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, Process *out) {
    BEGIN_DEVICE;
    return processes(device, "compute_pids", "self", count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, Process *out) {
    BEGIN_DEVICE;
    return processes(device, "graphics_pids", "", count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *device, unsigned *count, Process *out) {
    BEGIN_DEVICE;
    return processes(device, "graphics_pids", "", count, out);
}
