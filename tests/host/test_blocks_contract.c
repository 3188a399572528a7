/* SPDX-License-Identifier: Apache-2.0 */
/* ckv blocks: rules that hold for every operation alike. */
#include "tests/support/blocks_lines.h"
#include "tests/support/case.h"

#include <stdlib.h>
#include <string.h>

/* A window above max_seq_len means max_seq_len wherever one is named. */
static void large_windows_mean_the_longest(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[99,8,40],'blocks':{'77':[8,4],'8':[8,4]},"
         "'pools':[{'window':50,'size_per_head':2}]}",
         "{'windows':[8,32],'free':{'8':8,'32':8}}"},
        {"{'op':'windows'}", "{'windows':{'32':{'layers':[0,2],'size_per_head':2},'8':{'size_per_head':1}}}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9]}]}", "{'requests':[{'ids':{'32':[[0,1,2]]}}]}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'finish_context','id':1,'pin':true}", "{'handles':[[32,0,1],[32,1,2],[8,0,3],[8,1,4]]}"},
        {"{'op':'find','range':[0,8],'window':99}", "{'found':true,'blocks':[0,1]}"},
        {"{'op':'find','range':[0,8],'window':99,'pin':true}", "{'handles':[[32,0,5],[32,1,6]]}"},
        {"{'op':'make_private','id':1,'window':99,'index':2}", "{'ids':{'32':[[0,1,2]]}}"},
        {"{'op':'write','window':99,'block':2,'stamp':5}", "{'block':2}"},
        {"{'op':'offload','window':99,'block':2}", "{'level':1}"},
        {"{'op':'read','window':99,'id':1,'index':2}", "{'level':1,'data':[5,5,5,5]}"},
        {"{'op':'onboard','window':99,'block':2}", "{'level':0}"},
        {"{'op':'needed','window':99,'id':1}", "{'window':32}"},
        {"{'op':'remaining','window':99,'id':1}", "{'window':32}"},
        {"{'op':'schedule_start'}", "{}"},
        {"{'op':'schedule_fits','window':99,'blocks':5}", "{'window':32,'fits':true}"},
        {"{'op':'unpin','handles':[[32,0,1],[99,0,1]]}", "{'error':'not_found'}"},
        {"{'op':'unpin','handles':[[16,0,1]]}", "{'error':'not_found'}"},
        {"{'op':'unpin','handles':[[99,0,1],[33,1,2],[32,0,5],[8,0,3],[8,1,4],[1000,1,6]]}", "{}"},
        {"{'op':'diag'}", "{'pins':0}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'windows':[99,8],'primary_bytes':1000,"
         "'pools':[{'window':33,'size_per_head':2}],'ranks':[{'primary_bytes':1000},"
         "{'primary_bytes':900,'windows':[8,64]}]}",
         "{'windows':{'8':{'blocks':[28,0],'block_bytes':16},'32':{'blocks':[14,0],'block_bytes':32}}}"},
    };
    EXPECT(lines);
}

/* Windows that ranks list themselves decide how many layers those ranks have. */
static void ranks_have_their_own_windows(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'ranks':[{'primary_bytes':1000,'windows':[32,8]},"
         "{'primary_bytes':900,'windows':[8,32]}]}",
         "{'windows':{'8':{'blocks':[28,0]},'32':{'blocks':[28,0]}}}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'windows':[32,8],'ranks':[{'primary_bytes':1000},"
         "{'primary_bytes':1000,'windows':[32,8,8]}]}",
         "{'windows':{'8':{'blocks':[15,0],'block_bytes':16},'32':{'blocks':[31,0],'block_bytes':16}}}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'ranks':[{'primary_bytes':1000,'windows':[32,8]},"
         "{'primary_bytes':1000,'windows':[32,16]}]}",
         "{'error':'invalid'}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'layers':0,'primary_bytes':1000}",
         "{'error':'invalid'}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'kv_heads':[],'primary_bytes':1000}",
         "{'error':'invalid'}"},
        {"{'op':'size_pools','tokens_per_block':4,'max_seq_len':32,'windows':[],'primary_bytes':1000}",
         "{'error':'invalid'}"},
    };
    EXPECT(lines);
}

/* Recurrent state lives beside a full window. */
static void states_need_a_full_window(void **state)
{
    (void)state;
#define INIT                                                                                                           \
    "{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0],'partial_reuse':false,"                         \
    "'recurrent':{'state_bytes':10,'snapshot_interval':4},'windows':"
    static const script_line lines[] = {
        {INIT "[-1]}", "{'error':'invalid'}"},
        {INIT "[-1,8]}", "{'error':'invalid'}"},
        {INIT "[-1,8,32]}", "{'windows':[-1,8,32]}"},
        {INIT "[40,-1]}", "{'windows':[-1,32]}"},
    };
    EXPECT(lines);
#undef INIT
}

/* What a line says is judged before what the manager knows: wrong values, then state, then room. */
static void values_are_judged_first(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':[4,0],'max_sequences':2}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4]}]}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4]},{'id':2,'range':[0,17]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,4]},{'id':2,'range':[0,4]},{'id':3,'range':[0,4],'beam':2}]}",
         "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,4]},{'id':3,'range':[0,4]},{'id':1,'range':[0,4]}]}",
         "{'error':'state'}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,4]},{'id':2,'range':[0,4]}]}", "{'error':'state'}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,4]},{'id':3,'range':[0,4]}]}", "{'error':'capacity'}"},
        {"{'op':'prefill','id':9,'to':'x'}", "{'error':'invalid'}"},
        {"{'op':'append','id':9,'tokens':[]}", "{'error':'invalid'}"},
        {"{'op':'remove','id':9,'store':1}", "{'error':'invalid'}"},
        {"{'op':'rewind','id':9,'n':-1}", "{'error':'invalid'}"},
        {"{'op':'write','block':9}", "{'error':'invalid'}"},
        {"{'op':'read','block':9,'rows':5}", "{'error':'invalid'}"},
        {"{'op':'read','window':4,'block':true}", "{'error':'invalid'}"},
        {"{'op':'offload','window':4,'id':9,'index':'x'}", "{'error':'invalid'}"},
        {"{'op':'retention','retention':{'decode_priority':101},'tokens_per_block':4,'length':4}",
         "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':{' 16':[4,0]}}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':{'+16':[4,0]}}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':{'016':[4,0]}}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':{'16x':[4,0]}}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':16,'blocks':{'':[4,0]}}", "{'error':'invalid'}"},
        {"{'op':'diag'}", "{'sequences':1}"},
    };
    EXPECT(lines);
}

/* An append that is refused has written no row, not even that of the token before. */
static void a_refused_append_writes_nothing(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':8,'blocks':[2,0],'max_beam':2}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,5]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'append','id':1,'tokens':[5]}", "{}"},
        {"{'op':'write','block':1,'stamp':7}", "{}"},
        {"{'op':'append','id':1,'tokens':[6,7,8]}", "{'error':'capacity'}"},
        {"{'op':'read','block':1}", "{'data':[7,7,7,7]}"},
        {"{'op':'append','id':1,'tokens':[2147483648]}", "{'error':'invalid'}"},
        {"{'op':'read','block':1}", "{'data':[7,7,7,7]}"},
        {"{'op':'verify','id':1}", "{'ok':false,'bad':[[8,0,4]]}"},
        {"{'op':'append','id':1,'tokens':[6]}", "{'tokens':7}"},
        {"{'op':'verify','id':1}", "{'ok':false,'checked':{'8':6},'bad':[[8,0,4]]}"},
    };
    EXPECT(lines);
}

/* However often a bounded buffer is flushed, it holds the newest, in order, and the count of the others. */
static void a_bounded_buffer_holds_the_newest(void **state)
{
    (void)state;
#define SERVE(i)                                                                                                       \
    {"{'op':'add','requests':[{'id':" #i ",'tokens':[" #i ",1,2,3,4]}]}", "{}"},                                       \
        {"{'op':'prefill','id':" #i "}", "{}"},                                                                        \
    {                                                                                                                  \
        "{'op':'remove','id':" #i "}", "{'stored':{'32':1}}"                                                           \
    }
#define FLUSH(n)                                                                                                       \
    {                                                                                                                  \
        "{'op':'flush_events'}", "{'buffered':" #n "}"                                                                 \
    }
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[12,0],'event_buffer':2}", "{}"},
        FLUSH(1),
        SERVE(1),
        FLUSH(2),
        SERVE(2),
        FLUSH(2),
        SERVE(3),
        SERVE(4),
        FLUSH(2),
        SERVE(5),
        FLUSH(2),
        FLUSH(2),
        {"{'op':'events'}", "{'events':[{'id':4,'blocks':[{'tokens':[4,1,2,3]}]},"
                            "{'id':5,'blocks':[{'tokens':[5,1,2,3]}]}],'dropped':4}"},
        SERVE(6),
        {"{'op':'events'}", "{'events':[{'id':6}],'dropped':0}"},
        SERVE(7),
        SERVE(8),
        SERVE(9),
        FLUSH(2),
    };
    EXPECT(lines);
#undef SERVE
#undef FLUSH
}

static const ckv_test_case cases[] = {
    CKV_CASE(large_windows_mean_the_longest),  CKV_CASE(ranks_have_their_own_windows),
    CKV_CASE(states_need_a_full_window),       CKV_CASE(values_are_judged_first),
    CKV_CASE(a_refused_append_writes_nothing), CKV_CASE(a_bounded_buffer_holds_the_newest),
};

CKV_TEST_MAIN("blocks_contract", cases)
