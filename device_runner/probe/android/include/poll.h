#ifndef PROBE_POLL_H
#define PROBE_POLL_H
struct pollfd {
    int fd;
    short events, revents;
};
#define POLLIN 1
int poll(struct pollfd *files, unsigned count, int milliseconds); /* nfds_t is unsigned int on bionic */
#endif
