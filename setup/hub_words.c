/* What a hub's refusal means for the owner. */
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/str.h"
#include "setup/hub_internal.h"

void hub_page_title(const hub_reply *r, char *out, size_t cap) {
    const char *at = strstr(r->text, "<title>");
    at = at != NULL ? at + 7 : r->text;
    size_t n = strcspn(at, "<\r\n");
    if (n == 0 && *at == '<') n = strlen(at) < 60 ? strlen(at) : 60;
    size_t k = 0;
    for (; k < n && k + 1 < cap; k++)
        out[k] = (unsigned char)at[k] < 32 || (unsigned char)at[k] >= 127 ? '?' : at[k];
    out[k] = '\0';
}

static int refused(hub *h, const hub_file *f, const hub_reply *r, err *e) {
    pthread_mutex_lock(&h->lock);
    bool is_anonymous = f->is_anonymous;
    pthread_mutex_unlock(&h->lock);
    bool sent_token = h->o.token != NULL && !is_anonymous;
    if (str_eq(r->error_code, "GatedRepo") && sent_token)
        return err_set(e, ERR_AUTH,
            "%s: the licence of %s is not accepted yet with this account; "
            "open %s/%s in a browser, accept it and try again",
            f->f->path, f->f->repo, h->o.endpoint, f->f->repo);
    if (is_anonymous)
        return err_set(e, ERR_AUTH,
            "%s: the hub refuses the token, and %s cannot be read without "
            "one; make a new token and put it into HF_TOKEN_FILE",
            f->f->path, f->f->repo);
    if (!sent_token)
        return err_set(e, ERR_AUTH,
            "%s: %s needs a token (it is gated, private or does not exist); "
            "set HF_TOKEN_FILE to a file with a read-only one",
            f->f->path, f->f->repo);
    return err_set(e, ERR_AUTH, "%s: this account may not read %s (%s)", f->f->path, f->f->repo,
        r->error_code[0] != '\0' ? r->error_code : "no reason given");
}

int hub_words(hub *h, const hub_file *f, const hub_reply *r, bool is_far, err *e) {
    LOG(LOG_WARN, "hub", "refused", "file=%s status=%ld code=%s request=%s text=%s", f->rel,
        r->status, r->error_code, r->request_id, r->error_text);
    if (is_far && (r->status == 401 || r->status == 403 || r->status == 410))
        return err_set(e, ERR_AUTH,
            "%s: the storage refuses addresses that the hub just gave; is "
            "the clock of this machine right?",
            f->f->path);
    switch (r->status) {
    case 401:
    case 403:
        return refused(h, f, r, e);
    case 404:
        if (str_eq(r->error_code, "RevisionNotFound"))
            return err_set(e, ERR_NOT_FOUND, "%s: the hub no longer has commit %.12s of %s",
                f->f->path, f->f->commit, f->f->repo);
        if (str_eq(r->error_code, "EntryNotFound"))
            return err_set(e, ERR_NOT_FOUND, "%s is not in %s at commit %.12s", f->f->path,
                f->f->repo, f->f->commit);
        return err_set(e, ERR_NOT_FOUND,
            "%s: the hub has no %s (or it is private and needs a token)", f->f->path, f->f->repo);
    case 407:
        return err_set(e, ERR_AUTH,
            "the proxy wants a name and a password: put them into the proxy "
            "variable of the system");
    case 416:
        return err_set(e, ERR_MISMATCH,
            "%s: the server has a shorter file than the manifest says; "
            "the mirror is bad",
            f->f->path);
    default:
        return err_set(e, ERR_NET, "%s: the server answered %ld%s%s", f->f->path, r->status,
            r->error_text[0] != '\0' ? ": " : "", r->error_text);
    }
}
