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
ssize_t pread(int file, void *data, size_t size, off_t offset);
ssize_t write(int file, const void *data, size_t size);
#define SEEK_END 2
off_t lseek(int file, off_t offset, int from);
int getpagesize(void);
int fsync(int file);
int chdir(const char *path);
ssize_t readlink(const char *path, char *target, size_t size);
int execvp(const char *program, char *const *words);
int unlink(const char *path);
_Noreturn void _exit(int code);
#endif
