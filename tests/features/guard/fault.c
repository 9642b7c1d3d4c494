/* What a bad driver does to the process that calls it. JNI by the places of its table, so that no jni.h is needed. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *const *environment;
enum { GET_STRING_UTF_CHARS = 169 };

void die(const char *kind);

/* Ends the process by a signal, leaves it or never returns; kinds that are about outputs do nothing. */
void die(const char *kind) {
    const struct {
        const char *name;
        int number;
    } signals[] = {{"abort", SIGABRT}, {"segv", SIGSEGV}, {"ill", SIGILL}, {"bus", SIGBUS}, {"fpe", SIGFPE}};
    for (unsigned place = 0; place < sizeof signals / sizeof *signals; place++)
        if (!strcmp(kind, signals[place].name)) {
            signal(signals[place].number, SIG_DFL); /* the JVM's own handler would print pages first */
            raise(signals[place].number);
        }
    if (!strcmp(kind, "exit")) _exit(7);
    if (!strcmp(kind, "kill")) kill(getpid(), SIGKILL);
    while (!strcmp(kind, "hang")) pause();
    while (!strcmp(kind, "spin")) continue;
}

__attribute__((visibility("default"))) void Java_ai_onnxruntime_Fault_die(environment *jni, void *class, void *text) {
    const char *(*chars)(environment *, void *, void *) =
        (const char *(*)(environment *, void *, void *))(*jni)[GET_STRING_UTF_CHARS];
    (void)class;
    die(chars(jni, text, NULL));
}
