/* Twins of functions in stores/zookeeper: what they share, and their table.

   Answers of a server are read with every length checked. What does not fit goes to the Python twin,
   which raises the error. */

#include "zookeeper.h"

bool generations_read(Generations *known, PyObject *generations)
{
    return PyArg_ParseTuple(generations, "O!O!", &PyDict_Type, &known->young, &PyDict_Type,
                            &known->old);
}

bool find_size(const Generations *known, PyObject *path, PyObject **size)
{
    *size = PyDict_GetItemWithError(known->young, path);
    if (*size == NULL && !PyErr_Occurred()) {
        *size = PyDict_GetItemWithError(known->old, path);
        if (*size != NULL && PyDict_SetItem(known->young, path, *size) < 0) {
            return false;
        }
    }
    return *size != NULL || !PyErr_Occurred();
}

PyMethodDef zookeeper_methods[] = {
#define LIST_FUNCTION(name) {#name, name, METH_VARARGS, NULL},
    FUNCTIONS(LIST_FUNCTION)
#undef LIST_FUNCTION
    {NULL, NULL, 0, NULL},
};
