#ifndef PROBE_SIGNAL_H
#define PROBE_SIGNAL_H
#include <sys/types.h>
#define SIGHUP 1
#define SIGINT 2
#define SIGILL 4
#define SIGTRAP 5
#define SIGABRT 6
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGSEGV 11
#define SIGPIPE 13
#define SIGALRM 14
#define SIGTERM 15
#define SIGXCPU 24
#define SIGSYS 31
#define SIG_IGN ((void (*)(int))1)
int kill(pid_t process, int signal);
void (*signal(int number, void (*handler)(int)))(int);
#endif
