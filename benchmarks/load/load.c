/* A load generator for one core: closed loop, many connections, every answer checked.
 *
 *   load PORT[,PORT…] CONNECTIONS DEPTH SECONDS SCRIPT        connections are spread over the ports
 *   load PORT[,PORT…] CONNECTIONS DEPTH -REQUESTS SCRIPT      this many requests, however long they take
 *
 * SCRIPT (written by script.py) holds requests and the exact bytes of their answers:
 *   "LOADSCR1", u64 count, u64 request offsets[count + 1], u64 answer offsets[count + 1], requests, answers
 * Nothing is parsed: a connection sends DEPTH requests in one write, and compares the answers byte by byte. This is
 * less work than any server's, so one core can load another. The output proves it: it says how busy this process was.
 * A script without answers is HTTP: status and Content-Length are read, and anything but 200 is an error. A wrong
 * answer is printed, and ends the run with exit code 1.
 *
 * Prints one line of JSON. Latencies are of whole rounds: DEPTH requests sent, DEPTH answers read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVE = 1 << 20, HEAD = 16384, EVENTS = 256, LINEAR = 20000, LOGARITHMIC = 20000, PORTS = 64 };

struct script {
    uint64_t count;
    const uint64_t *request_at, *answer_at;
    const char *requests, *answers;
    int http;
};

struct connection {
    int fd;
    uint64_t next, end;           /* the round's requests: [next, end) of the script */
    uint64_t sent, to_send;       /* offsets into script.requests */
    uint64_t got, to_get;         /* offsets into script.answers; with HTTP: answers read, answers to read */
    uint64_t body_left;           /* HTTP: bytes of the current body still to come */
    char head[HEAD];              /* HTTP: the current head, so far */
    size_t head_length;
    double started;
};

static struct script script;
static int epoll;
static uint64_t depth, answered, bytes;
static uint64_t histogram[LINEAR + LOGARITHMIC]; /* whole microseconds, then steps of 100 µs */
static char buffer[RECEIVE];

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void wrong(const char *why, const char *expected, size_t expected_length, const char *found, size_t length) {
    fprintf(stderr, "load: wrong answer after %llu right ones: %s; expected %.*s, found %.*s\n",
            (unsigned long long)answered, why, (int)(expected_length < 200 ? expected_length : 200), expected,
            (int)(length < 200 ? length : 200), found);
    exit(1);
}

static void open_script(const char *path) {
    struct stat status;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &status)) fail(path);
    const char *file = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (file == MAP_FAILED) fail(path);
    if (status.st_size < 16 || memcmp(file, "LOADSCR1", 8)) {
        fprintf(stderr, "load: %s is not a load script\n", path);
        exit(2);
    }
    memcpy(&script.count, file + 8, 8);
    script.request_at = (const uint64_t *)(file + 16);
    script.answer_at = script.request_at + script.count + 1;
    script.requests = (const char *)(script.answer_at + script.count + 1);
    script.answers = script.requests + script.request_at[script.count];
    script.http = script.answer_at[script.count] == 0;
}

static void watch(struct connection *c, int writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
}

static void flush(struct connection *c, int was_waiting) {
    ssize_t n = send(c->fd, script.requests + c->sent, c->to_send - c->sent, MSG_NOSIGNAL);
    if (n < 0) {
        if (errno != EAGAIN) fail("send");
        n = 0;
    }
    c->sent += n;
    if (c->sent < c->to_send) watch(c, 1);
    else if (was_waiting) watch(c, 0);
}

static void begin_round(struct connection *c) {
    if (c->end + depth > script.count) c->end = 0;
    c->next = c->end;
    c->end = c->next + depth;
    c->sent = script.request_at[c->next];
    c->to_send = script.request_at[c->end];
    c->got = script.http ? 0 : script.answer_at[c->next];
    c->to_get = script.http ? depth : script.answer_at[c->end];
    c->started = now();
    flush(c, 0);
}

static void end_round(struct connection *c) {
    double us = (now() - c->started) * 1e6;
    uint64_t slot = us < LINEAR ? (uint64_t)us : LINEAR + (uint64_t)(us - LINEAR) / 100;
    if (slot >= LINEAR + LOGARITHMIC) slot = LINEAR + LOGARITHMIC - 1;
    histogram[slot]++;
    answered += depth;
    bytes += script.request_at[c->end] - script.request_at[c->next];
}

/* Compare the n received bytes with the expected ones. */
static void take_known(struct connection *c, size_t n) {
    const char *expected = script.answers + c->got;
    if (n > c->to_get - c->got) wrong("more bytes than asked for", "", 0, buffer, n);
    if (memcmp(buffer, expected, n)) {
        size_t at = 0;
        while (buffer[at] == expected[at]) at++;
        size_t from = at > 40 ? at - 40 : 0;
        wrong("bytes differ", expected + from, c->to_get - c->got - from, buffer + from, n - from);
    }
    c->got += n;
}

/* Read a complete head: its status must be 200, its Content-Length is the body's. */
static void read_head(struct connection *c) {
    c->head[c->head_length] = 0;
    if (strncmp(c->head, "HTTP/1.1 200", 12)) wrong("status", "HTTP/1.1 200", 12, c->head, c->head_length);
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (!length) wrong("no length", "Content-Length", 14, c->head, c->head_length);
    c->body_left = strtoull(length + 17, NULL, 10);
    c->head_length = 0;
}

static void take_http(struct connection *c, size_t n) {
    for (size_t at = 0; at < n;) {
        if (c->body_left) {
            size_t part = n - at < c->body_left ? n - at : c->body_left;
            c->body_left -= part;
            at += part;
        } else {
            if (c->head_length == HEAD - 1) wrong("head too long", "", 0, c->head, c->head_length);
            c->head[c->head_length++] = buffer[at++];
            if (c->head_length < 4 || memcmp(c->head + c->head_length - 4, "\r\n\r\n", 4)) continue;
            read_head(c);
        }
        if (!c->body_left && !c->head_length) c->got++;
    }
}

/* Read received bytes. Return whether the round is complete. */
static int receive(struct connection *c) {
    ssize_t n = recv(c->fd, buffer, RECEIVE, 0);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n < 0) fail("recv");
    if (n == 0) {
        fprintf(stderr, "load: the server closed a connection after %llu answers\n", (unsigned long long)answered);
        exit(1);
    }
    bytes += n;
    if (script.http) take_http(c, n);
    else take_known(c, n);
    return c->got == c->to_get;
}

static void connect_to(struct connection *c, int port, uint64_t first) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int yes = 1;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    c->end = first;
}

static double percentile(double part) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < LINEAR + LOGARITHMIC; i++) total += histogram[i];
    for (int i = 0; i < LINEAR + LOGARITHMIC; i++) {
        seen += histogram[i];
        if (seen >= part * total) return i < LINEAR ? i : LINEAR + (i - LINEAR) * 100.0;
    }
    return 0;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Load the server for the time, or the number of requests. Return the seconds. */
static double run(struct connection *connections, int count, double seconds, uint64_t requests) {
    struct epoll_event events[EVENTS];
    double start = now();
    for (int i = 0; i < count; i++) begin_round(&connections[i]);
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, 10000);
        if (n < 0) fail("epoll_wait");
        if (n == 0) {
            fprintf(stderr, "load: no answer for ten seconds, after %llu answers\n", (unsigned long long)answered);
            exit(1);
        }
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(c, 1);
            if (events[i].events & ~EPOLLOUT && receive(c)) {
                end_round(c);
                begin_round(c);
            }
        }
        if (seconds > 0 ? now() - start >= seconds : answered >= requests) return now() - start;
    }
}

static int parse_ports(char *text, int *ports) {
    int count = 0;
    for (char *word = strtok(text, ","); word && count < PORTS; word = strtok(NULL, ",")) ports[count++] = atoi(word);
    return count;
}

int main(int argc, char **argv) {
    int ports[PORTS], port_count = argc == 6 ? parse_ports(argv[1], ports) : 0;
    if (port_count == 0) {
        fprintf(stderr, "usage: load PORT[,PORT] CONNECTIONS DEPTH SECONDS|-REQUESTS SCRIPT\n");
        return 2;
    }
    int count = atoi(argv[2]);
    double amount = atof(argv[4]);
    depth = strtoull(argv[3], NULL, 10);
    open_script(argv[5]);
    if (script.count < depth) {
        fprintf(stderr, "load: the script is shorter than a round\n");
        return 2;
    }
    epoll = epoll_create1(0);
    struct connection *connections = calloc(count, sizeof *connections);
    for (int i = 0; i < count; i++) connect_to(&connections[i], ports[i % port_count], script.count / count * i);
    double busy = cpu_seconds();
    double seconds = run(connections, count, amount > 0 ? amount : 0, amount < 0 ? -amount : 0);
    busy = cpu_seconds() - busy;
    printf("{\"requests\": %llu, \"seconds\": %.6f, \"busy\": %.4f, \"bytes\": %llu, \"p50_us\": %.0f, \"p99_us\": %.0f}\n",
           (unsigned long long)answered, seconds, busy / seconds, (unsigned long long)bytes, percentile(.5), percentile(.99));
    return 0;
}
