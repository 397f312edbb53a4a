/* A chain of processes: each one starts the next, writes to the log, and ends at once. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

int main(void) {
    int log = open("log", O_WRONLY | O_APPEND | O_CREAT, 0600);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    for (int link = 0; link < 3000; link++) {
        if (fork() != 0) _exit(0);
        if (write(log, ".", 1) != 1) _exit(1);
        usleep(50);
    }
    return 0;
}
