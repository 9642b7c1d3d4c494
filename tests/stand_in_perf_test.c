/* Stands in for onnxruntime_perf_test where none is at hand: looks for its files as the real one does, then writes the
 * lines that the real one of 1.21.0 wrote. BEHAVIOUR: 0 well, 1 crashes, 2 hangs, 3 leaves the file short. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int missing(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return fprintf(stderr, "open file \"%s\" failed: No such file or directory\n", path);
    fclose(file);
    return 0;
}

int main(int count, char **arguments) {
    long runs = 1000;
    int generate = 0, letter;
    while ((letter = getopt(count, arguments, "m:e:r:t:p:x:y:c:d:o:u:i:f:F:S:T:C:AMPIDZvhsqznlR:")) != -1) {
        if (letter == 'r') runs = atol(optarg);
        if (letter == 't') runs = 50000;
        if (letter == 'I') generate = 1;
        if (letter == '?') return 255;
    }
    if (optind + 2 != count || missing(arguments[optind])) return 255;
    if (!generate && missing("test_data_set_0/input_0.pb")) return 255;
    if (BEHAVIOUR == 1) raise(SIGSEGV);
    if (BEHAVIOUR == 2) sleep(600);
    FILE *csv = fopen(arguments[optind + 1], "a");
    for (long i = 0; csv && i < runs - (BEHAVIOUR == 3); i++) fprintf(csv, "a,b,2.4677e-05,27025408,0,%ld\n", i);
    if (csv) fclose(csv);
    printf("Session creation time cost: 0.0164401 s\nFirst inference time cost: 4 ms\n"
           "Peak working set size: 27025408 bytes\n");
    return 0;
}
