/* GET /tandem/v1/replies/{id}: the rest of an answer that goes on without its connection. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/replies.h"

void route_reply(http_request *q) {
    api_error e;
    int64_t from = 0;
    if (http_query_number(q, "from", (int_range){0, INT64_MAX}, &from, &e) != OK) {
        http_fail(q, &e);
        return;
    }
    const char *id = q->path + strlen("/tandem/v1/replies/");
    replies_send(q->api->replies, q, id, (uint64_t)from);
}
