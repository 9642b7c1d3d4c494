/* Calls the parts of the probe that parse and print, for tests: `units PART FILE`, a line on stdout for each case.
 *
 *   string FILE     each NUL-ended text as a JSON string, and what a buffer of 16 bytes keeps of it
 *   number FILE     each NUL-ended text: the number or "no"
 *   sizes FILE      each NUL-ended text: the sizes or "no"
 *   bins FILE       numbers in pairs, when an inference began and how long it took: bins of 1000 as the probe keeps them
 *   drop FILE       the file out of the page cache: its size, and the bytes that stayed
 *   sensors DIR     clock and temperature as the files under DIR say
 *   fast DIR        cores that the files under DIR say to be faster than the slowest
 *   request FILE    the whole file as a request: "ok" with its triples and minimum of runs, or why not */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "cache.h"
#include "json.h"
#include "request.h"
#include "sensors.h"
#include "sustain.h"

static void print_string(const char *text) {
    char bytes[16] = "";
    struct sink whole = {.file = stdout}, bounded = {.bytes = bytes, .capacity = sizeof bytes};
    put_string(&whole, text);
    put_string(&bounded, text);
    printf("\t%d\t%zu\n", bounded.full, strlen(bytes));
}

static void print_number(const char *text) {
    int64_t number = 0;
    if (parse_number(text, &number))
        printf("%lld\n", (long long)number);
    else
        puts("no");
}

static void print_sizes(const char *text) {
    int64_t sizes[DIMENSIONS_MAX];
    int count = parse_sizes(text, sizes);
    for (int i = 0; i < count; i++) printf(i ? ",%lld" : "%lld", (long long)sizes[i]);
    puts(count < 0 ? "no" : "");
}

static int print_request(const char *path) {
    struct answer *answer = calloc(1, sizeof *answer);
    struct request request = {.mode = "run"};
    if (!answer) return 2;
    bool good = read_request(&request, answer, path);
    struct sink out = {.file = stdout};
    if (good)
        printf("ok %zu %lld", request.count / 3, (long long)request.min_runs);
    else
        put_string(&out, answer->message);
    puts("");
    release_request(&request);
    free(answer);
    return 0;
}

static int print_bins(const char *path) {
    struct answer *answer = calloc(1, sizeof *answer);
    struct filling *filling = calloc(1, sizeof *filling);
    FILE *file = fopen(path, "r");
    unsigned long long at, latency;
    if (!answer || !filling || !file) return 2;
    while (fscanf(file, "%llu %llu", &at, &latency) == 2) add_to_bins(answer, filling, 1000, at, latency);
    close_bin(answer, filling);
    for (size_t i = 0; i < answer->bin_count; i++) {
        const struct bin *bin = &answer->bins[i];
        printf("%llu %llu %llu %llu %llu %llu\n", (unsigned long long)bin->start, (unsigned long long)bin->count,
               (unsigned long long)bin->total, (unsigned long long)bin->least, (unsigned long long)bin->median,
               (unsigned long long)bin->most);
    }
    free(filling);
    free(answer);
    return fclose(file);
}

static int print_dropped(const char *path) {
    struct dropped_file file = {0};
    drop_pages(path, &file);
    printf("%lld %lld %s\n", (long long)file.bytes, (long long)file.resident, file.why);
    return 0;
}

static int print_sensors(const char *root) {
    struct sample sample = {0};
    read_sensors(root, &sample);
    printf("%u %d\n", sample.mhz, (int)sample.millidegrees);
    return 0;
}

static int print_fast(const char *root) {
    int64_t numbers[PROCESSORS_MAX];
    int count = fast_cores(root, numbers);
    for (int i = 0; i < count; i++) printf("%d ", (int)numbers[i]);
    return 0;
}

static int each_text(const char *path, void (*print)(const char *)) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    while (file && getdelim(&text, &room, 0, file) > 0) print(text);
    free(text);
    return file ? fclose(file) : 2;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    if (!strcmp(arguments[1], "string")) return each_text(arguments[2], print_string);
    if (!strcmp(arguments[1], "number")) return each_text(arguments[2], print_number);
    if (!strcmp(arguments[1], "sizes")) return each_text(arguments[2], print_sizes);
    if (!strcmp(arguments[1], "bins")) return print_bins(arguments[2]);
    if (!strcmp(arguments[1], "drop")) return print_dropped(arguments[2]);
    if (!strcmp(arguments[1], "fast")) return print_fast(arguments[2]);
    if (!strcmp(arguments[1], "sensors")) return print_sensors(arguments[2]);
    return print_request(arguments[2]);
}
