#ifndef PROBE_UNISTD_H
#define PROBE_UNISTD_H
#include <sys/types.h>
#define STDIN_FILENO 0
#define STDOUT_FILENO 1
#define STDERR_FILENO 2
pid_t fork(void);
pid_t getpid(void);
pid_t getppid(void);
int pipe(int ends[2]);
int dup(int file);
int dup2(int file, int other);
int close(int file);
ssize_t read(int file, void *data, size_t size);
_Noreturn void _exit(int code);
#endif
