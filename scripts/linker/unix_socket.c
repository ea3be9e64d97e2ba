/* The part of Python's module `_socket` that a quick verb uses: a Unix socket, for Linux.

   To load `_socket`, which defines 400 constants, takes three times as long. Names, arguments and errors
   are its own, so that it serves where this could not be compiled. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    int fd;
    /* Seconds; 0: do not block; negative: no limit. */
    double timeout;
} Socket;

typedef struct {
    enum { CONNECT, SEND, RECV } action;
    void *data;
    size_t size;
    int flags;
} Call;

static double
monotonic(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static PyObject *
failed(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static ssize_t
once(int fd, const Call *call)
{
    switch (call->action) {
    case CONNECT:
        return connect(fd, call->data, (socklen_t)call->size);
    case SEND:
        return send(fd, call->data, call->size, call->flags);
    default:
        return recv(fd, call->data, call->size, call->flags);
    }
}

/* Wait until a call can go on; return 0, or the error. */
static int
await(int fd, const Call *call, double until)
{
    struct pollfd found = {.fd = fd, .events = call->action == SEND ? POLLOUT : POLLIN};
    double left = until - monotonic();
    int count;

    if (left <= 0)
        return ETIMEDOUT;
    /* Rounded up, so as not to poll without a pause at the end. */
    count = poll(&found, 1, left < 1e6 ? (int)(left * 1e3) + 1 : 1000000000);
    return count < 0 ? errno : 0;
}

/* Run a call within the timeout, again if a signal interrupts it; return -1 with an exception set if it fails.

   What handles a signal runs first: the code that calls this is compiled, too, and Python runs it only between
   the instructions of its own. */
static ssize_t
run(Socket *self, const Call *call)
{
    double until = self->timeout > 0 ? monotonic() + self->timeout : 0;

    for (;;) {
        ssize_t done;
        int error;

        if (PyErr_CheckSignals() < 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS
        done = once(self->fd, call);
        error = done < 0 ? errno : 0;
        /* A connection that waits for its place in the queue cannot be waited for. */
        if (error == EAGAIN && self->timeout > 0 && call->action != CONNECT)
            error = await(self->fd, call, until);
        Py_END_ALLOW_THREADS
        if (done >= 0)
            return done;
        if (error == ETIMEDOUT && self->timeout > 0) {
            PyErr_SetString(PyExc_TimeoutError, "timed out");
            return -1;
        }
        if (error != 0 && error != EINTR) {
            failed(error);
            return -1;
        }
    }
}

static PyObject *
socket_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    int family, kind;
    Socket *self;

    if (!PyArg_ParseTuple(args, "ii:socket", &family, &kind))
        return NULL;
    self = (Socket *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->timeout = -1;
    self->fd = socket(family, kind | SOCK_CLOEXEC, 0);
    if (self->fd < 0) {
        int error = errno;

        Py_DECREF(self);
        return failed(error);
    }
    return (PyObject *)self;
}

static void
socket_dealloc(Socket *self)
{
    PyTypeObject *type = Py_TYPE(self);

    if (self->fd >= 0)
        close(self->fd);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
limit(Socket *self, double timeout)
{
    if ((timeout < 0) != (self->timeout < 0)) {
        int on = timeout >= 0;

        if (ioctl(self->fd, FIONBIO, &on) < 0)
            return failed(errno);
    }
    self->timeout = timeout;
    Py_RETURN_NONE;
}

static PyObject *
socket_settimeout(Socket *self, PyObject *given)
{
    double timeout = -1;

    if (given != Py_None) {
        timeout = PyFloat_AsDouble(given);
        if (timeout == -1 && PyErr_Occurred())
            return NULL;
        if (!(timeout >= 0)) {
            PyErr_SetString(PyExc_ValueError, "Timeout value out of range");
            return NULL;
        }
    }
    return limit(self, timeout);
}

static PyObject *
socket_setblocking(Socket *self, PyObject *given)
{
    int blocks = PyObject_IsTrue(given);

    return blocks < 0 ? NULL : limit(self, blocks ? -1 : 0);
}

static PyObject *
socket_connect(Socket *self, PyObject *given)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    Call call = {CONNECT, &address, 0, 0};
    PyObject *path;
    Py_ssize_t size;

    if (!PyUnicode_FSConverter(given, &path))
        return NULL;
    size = PyBytes_GET_SIZE(path);
    if (size >= (Py_ssize_t)sizeof address.sun_path) {
        Py_DECREF(path);
        PyErr_SetString(PyExc_OSError, "AF_UNIX path too long");
        return NULL;
    }
    memcpy(address.sun_path, PyBytes_AS_STRING(path), (size_t)size);
    Py_DECREF(path);
    call.size = offsetof(struct sockaddr_un, sun_path) + (size_t)size + 1;
    if (run(self, &call) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
socket_send(Socket *self, PyObject *args)
{
    Py_buffer data;
    int flags = 0;
    ssize_t sent;

    if (!PyArg_ParseTuple(args, "y*|i:send", &data, &flags))
        return NULL;
    sent = run(self, &(Call){SEND, data.buf, (size_t)data.len, flags});
    PyBuffer_Release(&data);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}

static PyObject *
socket_recv(Socket *self, PyObject *args)
{
    PyObject *data;
    Py_ssize_t size;
    ssize_t got;
    int flags = 0;

    if (!PyArg_ParseTuple(args, "n|i:recv", &size, &flags))
        return NULL;
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "negative buffersize in recv");
        return NULL;
    }
    data = PyBytes_FromStringAndSize(NULL, size);
    if (data == NULL)
        return NULL;
    got = run(self, &(Call){RECV, PyBytes_AS_STRING(data), (size_t)size, flags});
    if (got < 0) {
        Py_DECREF(data);
        return NULL;
    }
    if (got != size)
        _PyBytes_Resize(&data, got);
    return data;
}

static PyObject *
socket_recv_into(Socket *self, PyObject *args)
{
    Py_buffer place;
    ssize_t got;

    if (!PyArg_ParseTuple(args, "w*:recv_into", &place))
        return NULL;
    got = run(self, &(Call){RECV, place.buf, (size_t)place.len, 0});
    PyBuffer_Release(&place);
    return got < 0 ? NULL : PyLong_FromSsize_t(got);
}

static PyObject *
socket_getsockopt(Socket *self, PyObject *args)
{
    int level, option, size;
    char value[1024];
    socklen_t length;

    if (!PyArg_ParseTuple(args, "iii:getsockopt", &level, &option, &size))
        return NULL;
    if (size <= 0 || size > (int)sizeof value) {
        PyErr_SetString(PyExc_OSError, "getsockopt buflen out of range");
        return NULL;
    }
    length = (socklen_t)size;
    if (getsockopt(self->fd, level, option, value, &length) < 0)
        return failed(errno);
    return PyBytes_FromStringAndSize(value, (Py_ssize_t)length);
}

static PyObject *
socket_setsockopt(Socket *self, PyObject *args)
{
    int level, option, done;
    Py_buffer value;

    if (!PyArg_ParseTuple(args, "iiy*:setsockopt", &level, &option, &value))
        return NULL;
    done = setsockopt(self->fd, level, option, value.buf, (socklen_t)value.len);
    PyBuffer_Release(&value);
    if (done < 0)
        return failed(errno);
    Py_RETURN_NONE;
}

static PyObject *
socket_fileno(Socket *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(self->fd);
}

static PyObject *
socket_close(Socket *self, PyObject *Py_UNUSED(none))
{
    int fd = self->fd;

    self->fd = -1;
    /* What the server said when it closed the connection first is not an error of closing it. */
    if (fd >= 0 && close(fd) < 0 && errno != ECONNRESET)
        return failed(errno);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"settimeout", (PyCFunction)socket_settimeout, METH_O, NULL},
    {"setblocking", (PyCFunction)socket_setblocking, METH_O, NULL},
    {"connect", (PyCFunction)socket_connect, METH_O, NULL},
    {"send", (PyCFunction)socket_send, METH_VARARGS, NULL},
    {"recv", (PyCFunction)socket_recv, METH_VARARGS, NULL},
    {"recv_into", (PyCFunction)socket_recv_into, METH_VARARGS, NULL},
    {"getsockopt", (PyCFunction)socket_getsockopt, METH_VARARGS, NULL},
    {"setsockopt", (PyCFunction)socket_setsockopt, METH_VARARGS, NULL},
    {"fileno", (PyCFunction)socket_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)socket_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, socket_new},
    {Py_tp_dealloc, socket_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "agentbus.linked.unix_socket.socket",
    .basicsize = sizeof(Socket),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static int
fill(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);

    if (type == NULL)
        return -1;
    if (PyModule_AddObject(module, "socket", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    if (PyModule_AddIntMacro(module, AF_UNIX) < 0 || PyModule_AddIntMacro(module, SOCK_STREAM) < 0
        || PyModule_AddIntMacro(module, SOL_SOCKET) < 0 || PyModule_AddIntMacro(module, SO_PEERCRED) < 0
        || PyModule_AddIntMacro(module, MSG_NOSIGNAL) < 0)
        return -1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "unix_socket",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit_unix_socket(void)
{
    return PyModuleDef_Init(&definition);
}
