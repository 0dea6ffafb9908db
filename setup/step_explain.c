/* What an error of a step means to the person: why it matters and what to do next. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/step_internal.h"

#define ANY (-1)

typedef struct explanation {
    int step;          /* ANY */
    int code;          /* of the error, 0 any */
    int fault;         /* of the session, -1 any */
    const char *holds; /* part of the message, NULL any */
    const char *why, *next;
} explanation;

/* The first row that fits. */
static const explanation ROWS[] = {
    {ANY, 0, REMOTE_REFUSED, NULL,
        "The machine is there but no ssh server listens on that port; everything else goes through "
        "ssh.",
        "On the worker: sudo systemctl enable --now ssh. Then press Again."},
    {ANY, 0, REMOTE_UNREACHABLE, NULL, "Every later step works on both machines.",
        "Is it switched on and in the same network? Try: ping its address. Then press Again."},
    {ANY, 0, REMOTE_NO_NAME, NULL, "A name without an address cannot be reached.",
        "Use its address (ip addr on the worker shows it) in place of the name, then press Again."},
    {ANY, 0, REMOTE_BANNER, NULL,
        "A machine that answers but does not greet is usually out of memory.",
        "Wait up to 25 minutes or restart the worker, then press Again."},
    {ANY, 0, REMOTE_HOST_UNKNOWN, NULL,
        "Whoever answers at this address would get your password; so its key is compared first.",
        "On the worker's own screen: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub. Compare, then "
        "press Again."},
    {ANY, 0, REMOTE_HOST_CHANGED, NULL,
        "The worker was installed again, another machine has its address, or somebody listens in "
        "between.",
        "If you installed it again, remove the old entry with the command above; if not, stop here."},
    {ANY, 0, REMOTE_HOST_REVOKED, NULL, "This key was marked as not to be trusted.",
        "Find out who marked it; do not go on with this machine."},
    {ANY, 0, REMOTE_PERMISSION, NULL,
        "Without a login nothing can be checked or started on the worker.",
        "Check user name and password; log in by hand once: ssh USER@HOST. Then press Again."},
    {STEP_CONNECT, 0, ANY, "taken by", "Two programs cannot listen on one port.",
        "Stop the program that has it or choose another port above, then press Again."},
    {STEP_CONNECT, ERR_AUTH, ANY, "typed again",
        "A slip of the finger must not open the engine to a network.",
        "Press the button again and type the address, or set it back to 127.0.0.1 above."},
    {STEP_CONNECT, ERR_CANCELLED, ANY, "the key was not taken",
        "A key that nobody kept opens nothing, so it was taken out again.",
        "Press the button again and keep the key that is shown."},
    {ANY, 0, ANY, "is used by", "Two programs cannot listen on one port.",
        "Stop the program that is named or choose another port (tandem config set MASTER_PORT N), "
        "then press Again."},
    {STEP_DOWNLOAD, ERR_FULL, ANY, NULL,
        "Every file must be whole before it can be used. What arrived is kept.",
        "Free space on the head or choose another folder in step Model, then press Again: it goes on "
        "where it was."},
    {STEP_COPY, ERR_FULL, ANY, NULL, "The worker needs its own copy. What arrived is kept.",
        "Free space on the worker or choose another folder in step Model, then press Again: it goes "
        "on where it was."},
    {ANY, ERR_FULL, ANY, NULL, "Nothing can be written there any more.",
        "Free space, then press Again: it goes on where it was."},
    {ANY, ERR_CANCELLED, ANY, "goes on in the background",
        "Nothing is lost when this screen is left; only the steps that need it wait.",
        "Home (F2) shows how far it is. Press Again and then the same button to watch it here."},
    {STEP_DOWNLOAD, ERR_TIMEOUT, ANY, "on request",
        "It was paused here or by another tandem. What arrived is kept.",
        "Press Again: it goes on where it was."},
    {STEP_DOWNLOAD, ERR_TIMEOUT, ANY, NULL,
        "The hub sent nothing for a long time. What arrived is kept.",
        "Check the line (tandem check U5), then press Again: it goes on where it was."},
    {STEP_DOWNLOAD, 0, ANY, "bytes arrived",
        "Bytes arrived but they are wrong: a proxy, a mirror, the disk or the memory. A model with "
        "one wrong block answers nonsense.",
        "Press Again: the bad file is loaded anew. Twice on different files: tandem check D6 and P6."},
    {STEP_DOWNLOAD, 0, ANY, NULL, "Without its files there is no model.",
        "Press Again: finished parts are kept. Its log is logs/download.log in the state folder."},
    {STEP_COPY, 0, ANY, NULL, "Each machine reads its own copy.",
        "Press Again: finished parts are kept. Check the cable when it happens twice (step Network)."},
    {ANY, 0, ANY, "lock", "Two commands that change the pair at the same time would break it.",
        "End the process that is named; when it is gone already, press Again."},
    {STEP_START, 0, ANY, NULL,
        "One rank alone cannot answer, so both were stopped again. Nothing is left half started.",
        "Read the first error of each machine (tandem logs --node head, --node worker), then press "
        "Again."},
    {STEP_VERIFY, 0, ANY, NULL, "An engine that answers wrongly is worse than none.",
        "Is the pair still running? tandem status says so. Start it again in step Start."},
    {STEP_PREPARE, 0, ANY, NULL, "The start reads what is prepared here.",
        "Press Again: finished blocks are kept. Free memory first when it ran out."},
    {ANY, ERR_NET, ANY, NULL, "The other machine is not reached any more.",
        "Check that it runs and that the cable is in, then press Again."},
    {ANY, ERR_AUTH, ANY, "does not run as root",
        "Keys, settings and model would land in root's home, with more rights than any step needs.",
        "Leave (F10), log in as your own user and start tandem setup again."},
    {ANY, ERR_AUTH, ANY, NULL, "This step needs rights that were not given.",
        "Give the password of sudo, or run the commands shown by hand and press Again."},
    {ANY, ERR_BUSY, ANY, NULL, "Something else works on it at the moment.",
        "Wait for it or end it, then press Again."},
    {ANY, ERR_CANCELLED, ANY, NULL, "You stopped it; what is done is kept.",
        "Press Again to go on."},
    {ANY, 0, ANY, NULL, "The next steps stand on this one.",
        "Repair what is named, then press Again; tandem support makes a file for asking others."},
};

void step_explain(int i, const err *e, remote_fault fault, step_message *out) {
    str_copy(out->what, sizeof out->what, e->msg);
    for (size_t k = 0; k < sizeof ROWS / sizeof ROWS[0]; k++) {
        const explanation *x = &ROWS[k];
        if (x->step != ANY && x->step != i) continue;
        if (x->code != 0 && x->code != e->code) continue;
        if (x->fault != ANY && x->fault != (int)fault) continue;
        if (x->holds != NULL && strcasestr(e->msg, x->holds) == NULL) continue;
        str_copy(out->why, sizeof out->why, x->why);
        str_copy(out->next, sizeof out->next, x->next);
        return;
    }
}
