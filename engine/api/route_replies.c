/* GET /tandem/v1/replies/{id}: the rest of an answer that goes on without its connection. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/replies.h"
#include "engine/base/str.h"

void route_reply(http_request *q) {
    api_error e;
    uint64_t from = 0;
    const char *text = http_query(q, "from");
    if (text != NULL && parse_u64(text, &from) != OK) {
        api_bad(&e, "from", NULL, "from must be a number of bytes");
        http_fail(q, &e);
        return;
    }
    replies_send(q->api->replies, q, q->path + strlen("/tandem/v1/replies/"), from);
}
