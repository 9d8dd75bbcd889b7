#!/usr/bin/env -S python3 -I -S
"""A llama-server made of the standard library only, for tests: starts in about 10 ms, fails on demand.

Takes llama-server's ``--host X.sock | ADDR``, ``--port``, ``-m``, ``--alias``, ``-c``, ``--api-key``; ignores
other flags. ``--version`` and ``--help`` answer what swapd's probe looks for. Knobs come from the
environment (numbers may be fractions, seconds unless said):

    LOAD_S          /health says 503 for this long            LOAD_EXIT     exit code instead of ready, after LOAD_S
    LOAD_MUTE=1     no output and no progress while loading   STDERR        text written to stderr at start
    IGNORE_TERM=1   SIGTERM does nothing (N: for N seconds)   TERM_WAITS=1  SIGTERM waits for running requests
    HANG=1          healthy, but never answers                PREFILL_S     silence before the headers of an answer
    TOKENS          tokens of an answer (8; a request's       TOK_S         tokens per second (0: at once)
                    max_tokens wins if smaller)
    HOLD            a file: silence before the headers until it exists
    PIECE_BYTES     each token of a stream is so much longer
    DIE_AFTER_TOK   abort after so many tokens of a stream    DIE_SIGNAL    with this signal number (6)
    LOG_BYTES       bytes of log lines while loading          LOG_SPAM      log lines per second, for ever
    N_CTX           context told by /props (default: -c)      SPEAK_ROUTER=1 llama.cpp's router protocol, if
    FAKE_LACKS      unix,fit,slots,loadmode,router: left out                LLAMA_SERVER_ROUTER_PORT is set
                    of --help (and, unix, refused)
    FAKE_PROJECTS   MiB by GPU ("3000,2000") that --log-jsonl with --fit on tells, as llama-server does before it loads
    FAKE_VRAM       FILE:GPU:MIB: takes MIB from the simulated devices FILE while it lives (GPU: id, index or
                    "ram"; several joined by ","), gives them back FREE_DELAY_S after it is gone, however it ended;
                    exits 1 with a CUDA out of memory text if they are not there (nothing taken from a GPU when
                    CUDA_VISIBLE_DEVICES is set and empty)
    FAKE_LOG        file of JSON lines {"t": monotonic, "ev", "model", "pid", …}; ev is one of
                    start (with argv and env), ready, term, req, disconnect, done, exit

``install(directory)`` gives an executable copy that starts with this interpreter, for a binary's ``path``.
"""

# ruff: noqa: UP031, SIM105
# Every import costs milliseconds of a start, so: no contextlib, no json before it is needed, no threading, no socket.

import _signal
import _socket
import _thread
import os
import sys
import time

LOADING, READY = "loading", "ready"


def num(name, default=0.0):
    return float(os.environ.get(name) or default)


class Args:
    """The flags that matter, from the command line."""

    def __init__(self, argv):
        self.host, self.port, self.model, self.alias, self.ctx, self.api_key = "127.0.0.1", 8080, "", "", 4096, ""
        names = {
            "--host": "host", "--port": "port", "-m": "model", "--model": "model", "-a": "alias", "--alias": "alias",
            "-c": "ctx", "--ctx-size": "ctx", "--api-key": "api_key",
        }  # fmt: skip
        words = iter(argv)
        for word in words:
            flag, eq, value = word.partition("=")
            if flag in names:
                setattr(self, names[flag], value if eq else next(words, ""))
        self.port, self.ctx = int(self.port), int(self.ctx) or 4096
        self.alias = self.alias or self.model or "fake"


class State:
    phase = LOADING
    served = 0


STATE = State()
IN_FLIGHT = {}  # connection: path
MEMORY = {}  # "claims" on devices, and the pipe to their "driver"
NOTING = _thread.RLock()  # a signal's handler may interrupt its holder
ARGS = Args(sys.argv[1:] if __name__ == "__main__" else [])
START = time.monotonic()


def quoted(value):
    import _json

    return _json.encode_basestring_ascii(value.encode("utf-8", "replace").decode())


def event(ev, extra="", at=0.0):
    """Append one JSON line to FAKE_LOG; ``at``: when it happened, if that was not now."""
    path = os.environ.get("FAKE_LOG")
    if not path:
        return
    line = '{"t": %.6f, "ev": "%s", "model": %s, "pid": %d%s}\n' % (
        at or time.monotonic(), ev, quoted(ARGS.alias), os.getpid(), extra,
    )  # fmt: skip
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


def say(fd, text):
    try:
        os.write(fd, text.encode())
    except OSError:
        pass


def note_end(connection):
    """Written once, by the connection's own thread or, where the process ends before that runs, by `leave`."""
    with NOTING:
        path = IN_FLIGHT.pop(connection, None)
        if path is not None:
            ev = "done" if connection.answered_at else "disconnect"
            event(ev, ', "path": %s' % quoted(path), connection.answered_at)


def leave(code, why):
    NOTING.acquire()
    for connection in list(IN_FLIGHT):
        if connection.answered_at or connection.hung_up():
            note_end(connection)
    give_back()
    event("exit", ', "code": %d, "why": "%s"' % (code, why))
    if ARGS.host.endswith(".sock"):
        try:
            os.unlink(ARGS.host)
        except OSError:
            pass
    os._exit(code)


# ---------------------------------------------------------------- simulated memory


def change_devices(path, gpu, mib):
    """Add ``mib`` to what is free on one device of the file; False if there is not enough."""
    import fcntl
    import json

    lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with open(path) as file:
            data = json.load(file)
        if gpu == "ram":
            data["ram_available_mib"] += mib
            enough = data["ram_available_mib"] >= 0
        else:
            row = next(g for g in data["gpus"] if gpu in (g["id"], str(g["index"])))
            row["free_mib"] += mib
            enough = row["free_mib"] >= 0
        if enough or mib > 0:
            with open(path + ".new", "w") as file:
                json.dump(data, file)
            os.replace(path + ".new", path)
        return enough
    finally:
        os.close(lock)


def driver(read_end, ready_end):
    """The driver's part: a process of its own that gives the memory back once the server is gone, however it went."""
    os.setsid()
    os.write(ready_end, b"x")
    os.dup2(read_end, 0)
    os.closerange(1, 256)
    if not os.read(0, 1):
        time.sleep(num("FREE_DELAY_S"))
        for claim in MEMORY["claims"]:
            change_devices(*claim)
    os._exit(0)


def give_back():
    """A server that ends in order has given its memory back by then, unless FREE_DELAY_S says otherwise."""
    if MEMORY and not num("FREE_DELAY_S"):
        os.write(MEMORY["driver"], b"x")
        for claim in MEMORY["claims"]:
            change_devices(*claim)


def take_memory():
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    claims = []
    for claim in filter(None, os.environ.get("FAKE_VRAM", "").split(",")):
        path, gpu, mib = claim.rsplit(":", 2)
        if gpu != "ram" and hidden:
            continue
        if not change_devices(path, gpu, -int(mib)):
            for other in claims:
                change_devices(*other)
            say(2, f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib}.00 MiB on device 0: "
                   "cudaMalloc failed: out of memory\nE srv    load_model: failed to load model\n")  # fmt: skip
            leave(1, "out of memory")
        claims.append((path, gpu, int(mib)))
    if claims:
        read_end, write_end = os.pipe()
        told, ready_end = os.pipe()
        MEMORY.update(claims=claims, driver=write_end)
        if os.fork() == 0:
            os.close(write_end)
            driver(read_end, ready_end)
        os.read(told, 1)  # from here on no signal to the group reaches it
        for fd in (read_end, told, ready_end):
            os.close(fd)
        os.set_inheritable(write_end, False)


# ---------------------------------------------------------------- router protocol, signals, log noise


def speaks_router():
    return bool(os.environ.get("SPEAK_ROUTER")) and bool(os.environ.get("LLAMA_SERVER_ROUTER_PORT"))


def tell_router(state, payload):
    if speaks_router():
        say(1, 'cmd_child_to_router:state:{"state":"%s","payload":{%s}}\n' % (state, payload))


def router_thread():
    """llama-server starts this only after the load: end of file ends it with 1, the line with 0."""
    pending = b""
    while True:
        data = os.read(0, 4096)
        if not data:
            say(2, "EOF on stdin detected, forcing shutdown...\n")
            leave(1, "stdin closed")
        pending += data
        if b"cmd_router_to_child:exit\n" in pending:
            leave(0, "told by router")


def on_term(_number, _frame):
    event("term")
    ignore = num("IGNORE_TERM")
    if ignore == 1 or time.monotonic() - START < ignore:
        return
    if speaks_router() and STATE.phase == READY:
        return
    if os.environ.get("TERM_WAITS") and IN_FLIGHT:
        _thread.start_new_thread(leave_when_idle, ())
        return
    leave(0, "SIGTERM")


def leave_when_idle():
    while IN_FLIGHT:
        time.sleep(0.01)
    leave(0, "SIGTERM")


def spam():
    rate, number = num("LOG_SPAM"), 0
    while rate:
        say(2, "".join(f"slot print_timing: id {number + i} | a line of the log of a busy server\n" for i in range(10)))
        number += 10
        time.sleep(10 / rate)


def write_log_bytes(total):
    block = b"srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200 and some more\n" * 700
    while total > 0:
        total -= os.write(2, block[:total])


# ---------------------------------------------------------------- HTTP


class Gone(Exception):
    """The client has hung up."""


class Connection:
    def __init__(self, sock):
        self.sock, self.buffer, self.answered_at = sock, b"", 0.0

    def send(self, data):
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except OSError:
                raise Gone from None

    def send_last(self, data):
        """Send the end of an answer: whoever leaves from here on has all of it."""
        self.answered_at = time.monotonic()
        self.send(data)

    def fill(self):
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            raise Gone
        self.buffer += data

    def request(self):
        """(method, path, headers, body) of the next request."""
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding") == "chunked":
            body = self.chunked()
        else:
            length = int(headers.get("content-length", 0))
            while len(self.buffer) < length:
                self.fill()
            body, self.buffer = self.buffer[:length], self.buffer[length:]
        method, path = lines[0].split(" ")[:2]
        return method, path, headers, body

    def chunked(self):
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                self.fill()
            size, self.buffer = self.buffer.split(b"\r\n", 1)
            length = int(size, 16)
            while len(self.buffer) < length + 2:
                self.fill()
            body, self.buffer = body + self.buffer[:length], self.buffer[length + 2 :]
            if not length:
                return body

    def hung_up(self):
        """Whether the client has closed its end (what it sent before that may still be unread)."""
        try:
            return self.sock.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def wait(self, seconds):
        """Sleep, but notice at once when the client leaves."""
        import select

        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self.sock], [], [], min(left, 3600))[0]:
                if self.hung_up():
                    raise Gone
                time.sleep(min(left, 0.01))  # pipelined bytes: only the end of file counts

    def answer(self, status, body, kind="application/json"):
        if not isinstance(body, bytes):
            import json

            body = json.dumps(body).encode()
        self.send_last(
            f"HTTP/1.1 {status} X\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: keep-alive\r\n\r\n".encode()
            + body
        )


def error(status, message, kind):
    return {"error": {"code": status, "message": message, "type": kind}}


def serve(sock):
    connection = Connection(sock)
    try:
        while True:
            handle(connection, *connection.request())
    except Gone:
        pass
    finally:
        sock.close()


def handle(connection, method, target, headers, body):
    path = target.partition("?")[0]
    if path in ("/health", "/v1/health"):
        if STATE.phase == READY:
            return connection.answer(200, b'{"status":"ok"}')
        return connection.answer(503, error(503, "Loading model", "unavailable_error"))
    if STATE.phase != READY:
        return connection.answer(503, error(503, "Loading model", "unavailable_error"))
    if ARGS.api_key and headers.get("authorization") != "Bearer " + ARGS.api_key:
        return connection.answer(401, error(401, "Invalid API Key", "authentication_error"))
    if headers.get("upgrade", "").lower() == "websocket":
        return echo_websocket(connection, path, headers)
    if method == "POST":
        return work(connection, path, headers, body)
    if path in LOOKUPS:
        return connection.answer(200, *LOOKUPS[path]())
    return connection.answer(404, error(404, "File Not Found", "not_found_error"))


def echo_websocket(connection, path, headers):
    """Sends every byte back until the client leaves."""
    import base64
    import hashlib

    key = headers.get("sec-websocket-key", "") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    event("websocket", ', "path": %s' % quoted(path))
    connection.answered_at = 0.0
    IN_FLIGHT[connection] = path
    connection.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept.encode())  # fmt: skip
    try:
        while True:
            while not connection.buffer:
                connection.fill()
            data, connection.buffer = connection.buffer, b""
            connection.send(data)
    except Gone:
        note_end(connection)
        raise


def props():
    n_ctx = int(num("N_CTX", ARGS.ctx))
    settings = {"n_ctx": n_ctx, "params": {"temperature": 0.8}}
    return ({"default_generation_settings": settings, "total_slots": 4, "model_alias": ARGS.alias,
             "model_path": ARGS.model, "is_sleeping": False},)  # fmt: skip


def slots():
    return ([{"id": i, "n_ctx": ARGS.ctx, "is_processing": i < len(IN_FLIGHT)} for i in range(4)],)


def metrics():
    text = f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {len(IN_FLIGHT)}\n"
    return text.encode(), "text/plain; version=0.0.4"


def models():
    return ({"object": "list", "data": [{"id": ARGS.alias, "object": "model", "owned_by": "llamacpp"}]},)


LOOKUPS = {"/props": props, "/slots": slots, "/metrics": metrics, "/v1/models": models, "/models": models}
CHATS = ("/v1/chat/completions", "/chat/completions")
TEXTS = ("/v1/completions", "/completions", "/completion", "/infill")


def work(connection, path, headers, body):
    import json

    connection.answered_at = 0.0
    IN_FLIGHT[connection] = path
    STATE.served += 1
    event("req", ', "path": %s, "n": %d, "auth": %s' % (quoted(path), STATE.served,
                                                       quoted(headers.get("authorization", ""))))  # fmt: skip
    try:
        if headers.get("content-type", "").startswith("multipart/"):
            import hashlib

            return connection.answer(200, {"sha256": hashlib.sha256(body).hexdigest(), "path": path})
        try:
            ask = json.loads(body or b"{}")
        except ValueError:
            return connection.answer(400, error(400, "parse error", "invalid_request_error"))
        if os.environ.get("HANG"):
            connection.wait(86400)
        connection.wait(num("PREFILL_S"))
        while (hold := os.environ.get("HOLD")) and not os.path.exists(hold):
            connection.wait(0.02)
        if path in CHATS or path in TEXTS:
            generate(connection, ask, path in CHATS)
        elif path.endswith(("/embeddings", "/embedding")):
            vector = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2, 0.3]}]
            connection.answer(200, {"object": "list", "model": ARGS.alias, "data": vector,
                                    "usage": {"prompt_tokens": 3, "total_tokens": 3}})  # fmt: skip
        elif path == "/tokenize":
            connection.answer(200, {"tokens": [1, 2, 3]})
        else:
            connection.answer(200, {"echo": ask, "path": path})
        note_end(connection)
    except Gone:
        connection.answered_at = 0.0
        note_end(connection)
        raise
    finally:
        IN_FLIGHT.pop(connection, None)


def generate(connection, ask, chat):
    wanted = ask.get("max_tokens") or ask.get("max_completion_tokens") or ask.get("n_predict") or 0
    tokens = int(num("TOKENS", 8))
    tokens = min(tokens, int(wanted)) if wanted and int(wanted) > 0 else tokens
    pause = 1 / num("TOK_S") if num("TOK_S") else 0.0
    usage = {"prompt_tokens": 11, "completion_tokens": tokens, "total_tokens": 11 + tokens,
             "prompt_tokens_details": {"cached_tokens": 4}}  # fmt: skip
    timings = {"cache_n": 4, "prompt_n": 7, "prompt_ms": 5.0, "prompt_per_second": 1400.0, "predicted_n": tokens,
               "predicted_ms": 5.0 * tokens, "predicted_per_second": 200.0}  # fmt: skip
    if ask.get("stream"):
        return stream(connection, ask, chat, tokens, pause, usage, timings)
    for done in range(tokens):
        die_after(done)
        if pause:
            connection.wait(pause)
    text = "".join(f"tok{i} " for i in range(tokens))
    choice = {"index": 0, "finish_reason": "stop"}
    choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
    connection.answer(200, {"id": "chatcmpl-fake", "object": "chat.completion" if chat else "text_completion",
                            "created": int(time.time()), "model": ask.get("model", ARGS.alias), "choices": [choice],
                            "usage": usage, "timings": timings})  # fmt: skip
    return None


def die_after(done):
    limit = os.environ.get("DIE_AFTER_TOK")
    if limit and done >= int(limit):
        event("exit", ', "code": -6, "why": "DIE_AFTER_TOK"')
        say(2, "CUDA error: an illegal memory access was encountered\n")
        os.kill(os.getpid(), int(num("DIE_SIGNAL", 6)))
        time.sleep(5)


def stream(connection, ask, chat, tokens, pause, usage, timings):
    import json

    base = {"id": "chatcmpl-fake", "created": int(time.time()), "model": ask.get("model", ARGS.alias),
            "object": "chat.completion.chunk" if chat else "text_completion"}  # fmt: skip

    def emit(choices, **more):
        data = b"data: " + json.dumps({"choices": choices, **base, **more}).encode() + b"\n\n"
        connection.send(b"%x\r\n%s\r\n" % (len(data), data))

    def piece(text, finish=None):
        if chat:
            return [{"index": 0, "finish_reason": finish, "delta": {"content": text} if text else {}}]
        return [{"index": 0, "finish_reason": finish, "text": text}]

    connection.send(b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n")  # fmt: skip
    for number in range(tokens):
        die_after(number)
        if pause:
            connection.wait(pause)
        emit(piece(f"tok{number} " + "x" * int(num("PIECE_BYTES"))))
    die_after(tokens)
    if (ask.get("stream_options") or {}).get("include_usage"):
        emit(piece("", "stop"))
        emit([], usage=usage, timings=timings)
    else:
        emit(piece("", "stop"), usage=usage, timings=timings)
    connection.send_last(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


# ---------------------------------------------------------------- start

HELP = {
    "base": "-m,    --model FNAME                    model path to load\n-c,    --ctx-size N   size of the context\n"
        "--port PORT                             port to listen (default: 8080)\n",
    "unix": "--host HOST                             IP addresses to listen on, comma-separated, or UNIX socket paths\n"
            "                                        (ending in .sock)\n",
    "fit": "-fit,  --fit [on|off]                   whether to adjust unset arguments to fit in device memory\n",
    "slots": "--slot-save-path PATH                   path to save slot kv cache (default: disabled)\n",
    "loadmode": "-lm,   --load-mode MODE                 model loading mode (default: auto)\n",
    "jsonl": "--log-jsonl                             log as JSON lines\n",
    "router": "--models-dir PATH                       directory containing models for the router server\n",
}  # fmt: skip


def answer_probe():
    lacks = os.environ.get("FAKE_LACKS", "").split(",")
    if "--version" in sys.argv:
        sys.stderr.write("version: 11434 (fake)\nbuilt with Python for tests\n")
        os._exit(0)
    if {"--help", "-h"} & set(sys.argv):
        parts = [text for name, text in HELP.items() if name not in lacks]
        if "unix" in lacks:
            parts.append("--host HOST                             ip address to listen\n")
        if "loadmode" in lacks:
            parts.append("--no-mmap                               do not memory-map model\n")
        sys.stdout.write("----- common params -----\n\n" + "".join(parts))
        sys.stdout.flush()
        os._exit(0)


def listen():
    if ARGS.host.endswith(".sock"):
        if "unix" in os.environ.get("FAKE_LACKS", ""):
            say(2, f"couldn't bind HTTP server socket, hostname: {ARGS.host}, port: {ARGS.port}\n")
            leave(1, "no unix sockets")
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        address = ARGS.host
    else:
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        address = (ARGS.host, ARGS.port)
    try:
        sock.bind(address)
        sock.listen(512)
    except OSError as problem:
        say(2, f"couldn't bind HTTP server socket, hostname: {ARGS.host}, port: {ARGS.port}: {problem}\n")
        leave(1, "bind")
    return sock


def accept_loop(sock):
    while True:
        fd, _ = sock._accept()
        client = _socket.socket(fileno=fd)
        client.setblocking(True)
        if client.family == _socket.AF_INET:
            client.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        _thread.start_new_thread(serve, (client,))


def load():
    """What a load does before the server is ready."""
    mute = bool(os.environ.get("LOAD_MUTE"))
    if not mute:
        say(2, f"srv    load_model: loading model '{ARGS.model}'\n")
    write_log_bytes(int(num("LOG_BYTES")))
    stages = '"stages":["text_model"],"current":"text_model","value":'
    steps = int(num("LOAD_S") * 10 + 0.999)
    for step in range(steps):
        if not mute:
            tell_router(LOADING, stages + "%.3f" % (step / steps))
        time.sleep(num("LOAD_S") / steps)
    if os.environ.get("LOAD_EXIT"):
        leave(int(num("LOAD_EXIT")), "LOAD_EXIT")
    tell_router(LOADING, stages + "1.0")


def project():
    sizes = [size for size in os.environ.get("FAKE_PROJECTS", "").split(",") if size]
    row = '{"kind":"%s","name":"%s","self":%s,"model":0,"context":0,"compute":0}'
    rows = [row % ("device", "CUDA%d" % i, size) for i, size in enumerate(sizes)] + [row % ("host", "Host", "100")]
    event("project")
    say(1, '{"type":"fit_memory_breakdown","data":{"unit":"MiB","rows":[%s]}}\n' % ",".join(rows))


def main():
    answer_probe()
    env = ", ".join(f"{quoted(k)}: {quoted(v)}" for k, v in os.environ.items())
    event("start", ', "argv": [%s], "env": {%s}' % (", ".join(map(quoted, sys.argv)), env))
    if os.environ.get("STDERR"):
        say(2, os.environ["STDERR"].rstrip("\n") + "\n")
    if "--log-jsonl" in sys.argv:
        project()
    take_memory()
    _signal.signal(_signal.SIGTERM, on_term)
    _signal.signal(_signal.SIGINT, on_term)
    sock = listen()
    _thread.start_new_thread(accept_loop, (sock,))
    load()
    event("ready")
    STATE.phase = READY
    say(2, f"srv  llama_server: model loaded\nsrv  llama_server: listening on {ARGS.host}\n")
    tell_router(READY, '"id":%s,"meta":{"n_ctx":%d}' % (quoted(ARGS.alias), int(num("N_CTX", ARGS.ctx))))
    if speaks_router():
        _thread.start_new_thread(router_thread, ())
    _thread.start_new_thread(spam, ())
    while True:
        time.sleep(3600)  # signals are handled here


def install(directory):
    """Path of an executable copy named llama-server in ``directory``."""
    path = os.path.join(os.fspath(directory), "llama-server")
    with open(__file__) as source, open(path, "w") as copy:
        copy.write(f"#!{sys.executable} -IS\n" + source.read().partition("\n")[2])
    os.chmod(path, 0o755)
    return path


if __name__ == "__main__":
    main()
