#!/bin/bash
# tandem verify against the real engine with the demo model: every line has a verdict and none fails; no engine, a key file
# without a key and something that is no engine are told apart.
. "$(dirname "$0")/lib.sh"

shown=$("$tandem" verify --level 2)
code=$?
check "no line fails" test "$code" -eq 0 -o "$code" -eq 10
check "fourteen verdicts" is "$(printf '%s\n' "$shown" | grep -Ec '^(PASS|WARN|SKIP|FAIL)  ')" 14
check "the sum passes" has "$shown" '^PASS  chat '
check "thinking passes" has "$shown" '^PASS  thinking '
check "isolation passes" has "$shown" '^PASS  isolation '
check "four at once pass" has "$shown" '^PASS  parallel '
check "a cut stream is noticed" has "$shown" '^PASS  cancel '
check "the prompts are DeepSeek's token by token" has "$shown" '^PASS  tokens '
check "no RDMA here is said, not passed" has "$shown" 'this machine has no RDMA device'
check "a summary" has "$shown" '^tandem-demo: [0-9]+ passed, [0-9]+ with warnings, 0 failed, [0-9]+ skipped$'

shown=$("$tandem" verify --json)
check "six objects and a summary" is "$(printf '%s\n' "$shown" | grep -c '^{"v":1,.*}$')" 7
check "the answer is in the object" has "$shown" '"id":"chat","verdict":"PASS",.*"got":"17 \+ 19 = 36\."'

printf '# no key here\n' >"$work/key"
shown=$("$tandem" verify --key-file "$work/key" 2>&1)
check "a file without a key is said" has "$shown" 'holds no key'
shown=$("$tandem" verify --url http://127.0.0.1:9 2>&1)
code=$?
check "no endpoint is one sentence" one_line "$shown"
check "no endpoint has its code" is "$code" 41
shown=$("$tandem" verify --level 3 --soak 0)
check "level 3: ten sums" has "$shown" '^PASS  quality '
check "level 3: the whole window" has "$shown" '^PASS  window '
check "level 3: the soak that was left out is SKIP" has "$shown" '^SKIP  soak '
"$tandem" verify --level 3 --soak 600 >"$work/soak" 2>&1 &
soak=$!
soaks() { grep -q '^PASS  window ' "$work/soak" || has_ended $soak; }
wait_for 900 soaks
kill -INT $soak
wait $soak
check "an interrupted soak ends at once and fails nothing" has_not "$(cat "$work/soak")" '^FAIL'
check "what it did until then is told" has "$(cat "$work/soak")" '^(PASS|SKIP)  soak '
shown=$("$tandem" verify --level 4 2>&1)
check "a level that does not exist" is "$?" 2

done_testing
