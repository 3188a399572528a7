/* SPDX-License-Identifier: Apache-2.0 */
/* ckv blocks, and through it the block manager: what scripts answer. */
#include "tests/support/blocks_lines.h"
#include "tests/support/case.h"
#include "tests/support/workplace.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void public_cases(void **state)
{
    (void)state;
    static const char ending[] = ".expected.jsonl";
    glob_t found;
    if (glob(CKV_SHARED_CASES_DIR "/blocks/*.expected.jsonl", 0, NULL, &found) != 0)
        ckv_test_skip("%s/blocks holds no cases", CKV_SHARED_CASES_DIR);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.*s.jsonl", (int)(strlen(found.gl_pathv[i]) - strlen(ending)), found.gl_pathv[i]);
        char *script = read_text(path), *expected = read_text(found.gl_pathv[i]);
        blocks_expect_answers(path, script, expected);
        free(expected);
        free(script);
    }
    globfree(&found);
}

static void pools_of_every_kind(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':16,'max_seq_len':256,'windows':[256,64],'kv_heads':[4,2,4,4],"
         "'size_per_head':32,'dtype':'fp4','pools':[{'window':64,'size_per_head':64,'dtype':'f16'}],"
         "'indexer':{'head_dim':128,'quant_block':128},'blocks':[4,0]}",
         "{'windows':[64,256]}"},
        {"{'op':'windows'}", "{'windows':{'256':{'layers':[0,2],'kv_heads':[4],'block_bytes':13056,'pools':["
                             "{'kind':'kv','heads':4,'size_per_head':16,'layers':2,'block_bytes':4096},"
                             "{'kind':'scale','heads':4,'size_per_head':2,'layers':2,'block_bytes':512},"
                             "{'kind':'indexer','heads':1,'size_per_head':132,'layers':2,'block_bytes':8448}]},"
                             "'64':{'layers':[1,3],'kv_heads':[2,4],'dtype':'f16','block_bytes':33024,'pools':["
                             "{'kind':'kv','heads':2,'size_per_head':64,'layers':1,'block_bytes':8192},"
                             "{'kind':'kv','heads':4,'size_per_head':64,'layers':1,'block_bytes':16384},"
                             "{'kind':'indexer','layers':2,'block_bytes':8448}]}}}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':64,'blocks':[4,0],'cache':'self_k_only','dtype':'fp8',"
         "'kv_heads':3,'size_per_head':5}",
         "{'windows':[64]}"},
        {"{'op':'windows'}", "{'windows':{'64':{'block_bytes':60}}}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':64,'windows':[64,8],'layers':1,"
         "'blocks':{'64':[4,0],'8':[4,0]},'pools':[{'window':8,'size_per_head':4}]}",
         "{'windows':[64]}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':64,'blocks':[4,0],'dtype':'fp4','size_per_head':24}",
         "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':64,'blocks':[4,0],'windows':[-1]}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':64,'blocks':[4,0],'pools':[{'window':8,'size_per_head':1}]}",
         "{'error':'invalid'}"},
    };
    EXPECT(lines);
}

static void recurrent_state(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[-1,32],'blocks':[8,0],"
         "'recurrent':{'state_bytes':100,'snapshot_interval':8}}",
         "{'error':'unsupported'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[-1,32],'blocks':[8,0],'partial_reuse':false,"
         "'recurrent':{'state_bytes':100,'snapshot_interval':8}}",
         "{'windows':[-1,32]}"},
        {"{'op':'windows'}",
         "{'windows':{'-1':{'size_per_head':0,'kv_heads':[],'block_bytes':100,'pools':[{'kind':'state','heads':0,"
         "'size_per_head':0,'layers':1,'block_bytes':100}]}}}"},
        {"{'op':'snapshot_points','range':[0,18]}", "{'points':[8,16]}"},
        {"{'op':'needed','range':[0,18],'window':-1}", "{'blocks':3}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,18]}]}",
         "{'requests':[{'prepopulated':0,'ids':{'-1':[[-1,0,-1,1,2]],'32':[[0,1,2,3,4]]},'missed':8}]}"},
        {"{'op':'prefill','id':1,'to':4}", "{'error':'invalid'}"},
        {"{'op':'carry_state','id':1}", "{'copies':[]}"},
        {"{'op':'prefill','id':1,'to':8}", "{'kv':8}"},
        {"{'op':'snapshot_points','id':1}", "{'points':[16]}"},
        {"{'op':'carry_state','id':1}", "{'copies':[[0,1]]}"},
        {"{'op':'prefill','id':1,'to':16}", "{'kv':16}"},
        {"{'op':'carry_state','id':1}", "{'copies':[[1,2]]}"},
        {"{'op':'prefill','id':1}", "{'context_done':true}"},
        {"{'op':'finish_context','id':1}", "{'stored':{'-1':2,'32':4}}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'-1':4,'32':18}}"},
        {"{'op':'remove','id':1}", "{'stored':{'-1':0,'32':0}}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,18]}]}",
         "{'requests':[{'prepopulated':16,'ids':{'-1':[[-1,-1,-1,1,2]],'32':[[0,1,2,3,4]]},'reused':5,'missed':2}]}"},
        {"{'op':'add','requests':[{'id':3,'range':[0,10]}]}",
         "{'requests':[{'prepopulated':8,'ids':{'-1':[[-1,0,3]],'32':[[0,1,5]]}}]}"},
        {"{'op':'verify','id':2}", "{'ok':true,'checked':{'-1':4,'32':16}}"},
        {"{'op':'prefill','id':2}", "{'kv':18}"},
        {"{'op':'append','id':2,'tokens':[1,2,3]}", "{'ids':{'-1':[[-1,-1,-1,1,-1,2]]}}"},
        {"{'op':'page_table','ids':[2]}", "{'windows':{'-1':{'cache_loc':[2]}}}"},
        {"{'op':'verify','id':2}", "{'ok':true,'checked':{'-1':4,'32':20}}"},
        {"{'op':'rewind','id':2,'n':2}", "{'ids':{'-1':[[-1,-1,-1,1,2]]}}"},
        {"{'op':'verify','id':2}", "{'ok':true,'checked':{'-1':0,'32':19}}"},
        {"{'op':'check'}", "{'ok':true}"},
    };
    EXPECT(lines);
}

static void beams_part_at_a_state_boundary(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[-1,32],'blocks':[12,0],'partial_reuse':false,"
         "'max_beam':3,'recurrent':{'state_bytes':100,'snapshot_interval':4}}",
         "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,8],'beam':3,'max_new':4}]}",
         "{'requests':[{'ids':{'-1':[[0,1],[0,1],[0,1]]}}]}"},
        {"{'op':'prefill','id':1}", "{'kv':8}"},
        {"{'op':'needed','id':1,'window':-1}", "{'blocks':2}"},
        {"{'op':'append','id':1,'tokens':[9]}", "{'ids':{'-1':[[0,-1,1],[0,-1,2],[0,-1,3]]}}"},
        {"{'op':'needed','id':1,'window':-1}", "{'blocks':0}"},
        {"{'op':'rewind','id':1,'n':1}", "{'error':'unsupported'}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'-1':12,'32':24}}"},
        {"{'op':'stats'}", "{'windows':{'-1':{'gen_alloc':2,'copy_blocks':2,'copy_bytes':200}}}"},
    };
    EXPECT(lines);
}

static void sinks_stay(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':2,'max_seq_len':32,'windows':[3],'blocks':[8,0],'sink_tokens':3}",
         "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':2,'max_seq_len':32,'windows':[8],'blocks':[8,0],'sink_tokens':3}", "{}"},
        {"{'op':'windows'}", "{'windows':{'8':{'sink_blocks':2}}}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,6]}]}", "{'requests':[{'ids':{'8':[[0,1,2]]}}]}"},
        {"{'op':'prefill','id':1}", "{'kv':6}"},
        {"{'op':'append','id':1,'range':[6,4]}", "{'tokens':10,'ids':{'8':[[0,1,2,3,4]]}}"},
        {"{'op':'append','id':1,'range':[10,1]}", "{'tokens':11,'ids':{'8':[[0,1,-1,3,4,2]]}}"},
        {"{'op':'page_table','ids':[1]}",
         "{'windows':{'8':{'cache_loc':[0,1,3,4,2],'cu_num_pages':[0,5],'last_page_len':[1],'extra_page':[-1],"
         "'page_offset':[1],'cached':[9]}}}"},
        {"{'op':'page_table','ids':[1,1],'lens':[8,10]}",
         "{'windows':{'8':{'cache_loc':[0,1,3,0,1,3,4],'cu_num_pages':[0,3,7],'last_page_len':[2,2],"
         "'extra_page':[4,2],'page_offset':[1,1],'cached':[6,8]}}}"},
        {"{'op':'page_table','ids':[1],'lens':[12]}", "{'error':'invalid'}"},
        {"{'op':'page_table','ids':[1],'lens':[6]}", "{'error':'invalid'}"},
        {"{'op':'page_table','ids':[2]}", "{'error':'not_found'}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'8':8}}"},
        {"{'op':'check'}", "{'ok':true}"},
    };
    EXPECT(lines);
}

static void scratch_pages(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':2,'max_seq_len':32,'windows':[4],'layers':3,'blocks':[8,0],"
         "'swa_scratch':true}",
         "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,15]}]}",
         "{'requests':[{'ids':{'4':[[0,0,0,1,1,2,3,4]]},'scratch':{'4':[0,5]},'missed':3,'alloc_total':5}]}"},
        {"{'op':'make_private','id':1,'index':0}", "{'error':'state'}"},
        {"{'op':'prefill','id':1,'to':5}", "{'error':'invalid'}"},
        {"{'op':'prefill','id':1}", "{'kv':15,'free':{'4':5}}"},
        {"{'op':'table','id':1}",
         "{'windows':{'4':{'ids':[[-1,-1,-1,-1,-1,2,3,4]],'levels':[[-1,-1,-1,-1,-1,0,0,0]],'front_removed':5}}}"},
        {"{'op':'store_context','id':1}", "{'stored':{'4':2}}"},
        {"{'op':'find','range':[0,14]}", "{'found':true,'blocks':[-1,-1,-1,-1,-1,2,3]}"},
        {"{'op':'find','range':[0,12]}", "{'found':false}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'4':5}}"},
        {"{'op':'check'}", "{'ok':true}"},
    };
    EXPECT(lines);
}

static void tokens_of_a_connector(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0]}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,10],'external':10}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,10],'external':9}]}", "{'requests':[{'prepopulated':9}]}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'32':9}}"},
        {"{'op':'store_context','id':1}", "{'stored':{'32':2}}"},
        {"{'op':'add','requests':[{'id':2,'range':[0,13],'external':2}]}",
         "{'requests':[{'prepopulated':10,'reused':2}]}"},
        {"{'op':'verify','id':2}", "{'ok':true,'checked':{'32':10}}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[32,8],'blocks':[8,0]}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,10],'external':1}]}", "{'error':'unsupported'}"},
    };
    EXPECT(lines);
}

static void rewinding(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[8],'blocks':[8,0]}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,11]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{'kv':11}"},
        {"{'op':'append','id':1,'range':[11,2]}", "{'ids':{'8':[[-1,1,2,0]]}}"},
        {"{'op':'rewind','id':1,'n':2}", "{'error':'state'}"},
        {"{'op':'rewind','id':1,'n':1}", "{'tokens':12,'ids':{'8':[[-1,1,2]]}}"},
        {"{'op':'rewind','id':1,'n':-1}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'windows':[8],'blocks':[8,0],'max_rewind':2}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,11]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{'kv':11}"},
        {"{'op':'append','id':1,'range':[11,2]}", "{'ids':{'8':[[0,1,2,3]]}}"},
        {"{'op':'rewind','id':1,'n':2}", "{'tokens':11,'ids':{'8':[[0,1,2]]}}"},
        {"{'op':'append','id':1,'range':[50,3]}", "{'tokens':14,'ids':{'8':[[-1,1,2,3]]}}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'8':9}}"},
    };
    EXPECT(lines);
}

/* A stored tail is taken out of the tree, or copied when somebody else has it, before its rows change. */
static void rewound_tails_are_owned(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0],'event_buffer':-1}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,5]}]}", "{'requests':[{'ids':{'32':[[0,1]]}}]}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'append','id':1,'range':[5,3]}", "{'tokens':8}"},
        {"{'op':'store_for_reuse','id':1}", "{'stored':{'32':2}}"},
        {"{'op':'events'}",
         "{'events':[{},{'type':'stored','blocks':[{'hash':'h0'},{'hash':'h1','tokens':[4,5,6]}]}]}"},
        {"{'op':'rewind','id':1,'n':2}", "{'tokens':6}"},
        {"{'op':'pin','id':1}", "{'handles':[[32,0,1],[32,1,2]]}"},
        {"{'op':'append','id':1,'tokens':[60]}", "{'ids':{'32':[[0,2]]}}"},
        {"{'op':'verify','id':1}", "{'ok':true,'checked':{'32':6}}"},
        {"{'op':'find','range':[0,7]}", "{'found':true,'blocks':[0,1]}"},
        {"{'op':'unpin','handles':[[32,0,1],[32,1,2]]}", "{}"},
        {"{'op':'events'}", "{'events':[]}"},
        {"{'op':'store_for_reuse','id':1}", "{'stored':{'32':1}}"},
        {"{'op':'append','id':1,'tokens':[61]}", "{'tokens':8}"},
        {"{'op':'rewind','id':1,'n':3}", "{'tokens':5}"},
        {"{'op':'append','id':1,'tokens':[70]}", "{'ids':{'32':[[0,2]]}}"},
        {"{'op':'events'}", "{'events':[{'type':'stored','parent':'h0','blocks':[{'hash':'h2','tokens':[4,5]}]},"
                            "{'type':'removed','hashes':['h2']}]}"},
        {"{'op':'check'}", "{'ok':true}"},
    };
    EXPECT(lines);
}

static void names_keep_prefixes_apart(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[16,0],'event_buffer':-1}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9],'lora':3,'salt':'x','mm':[{'hash':'cat','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,7,7]}]}",
         "{}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'remove','id':1}", "{'stored':{'32':2}}"},
        {"{'op':'find','range':[0,8],'lora':3,'salt':'x','mm':[{'hash':'cat','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,7]}",
         "{'found':true}"},
        {"{'op':'find','range':[0,8],'lora':4,'salt':'x','mm':[{'hash':'cat','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,7]}",
         "{'found':false}"},
        {"{'op':'find','range':[0,8],'lora':3,'salt':'y','mm':[{'hash':'cat','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,7]}",
         "{'found':false}"},
        {"{'op':'find','range':[0,8],'lora':3,'salt':'x','mm':[{'hash':'dog','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,7]}",
         "{'found':false}"},
        {"{'op':'find','range':[0,8],'lora':3,'salt':'x','mm':[{'hash':'cat','pos':2,'len':4}],"
         "'extra_ids':[7,7,7,7,7,7,7,8]}",
         "{'found':false}"},
        {"{'op':'find','range':[0,8],'lora':3,'salt':'x','mm':[{'hash':'cat','pos':2,'len':4}]}", "{'found':false}"},
        {"{'op':'find','range':[0,3],'lora':3,'salt':'x','mm':[{'hash':'cat','pos':2,'len':1}],'extra_ids':[7,7,7]}",
         "{'found':false}"},
        {"{'op':'truncate','range':[0,8],'lora':3,'salt':'y','keep':0}", "{'dropped':{'32':0}}"},
        {"{'op':'events'}", "{'events':[{},{'blocks':[{'lora':3,'salt':'x'},{'lora':3,'salt':'x'}]}]}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9],'mm':[{'hash':1,'pos':8,'len':2}]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9],'extra_ids':[1]}]}", "{'error':'invalid'}"},
    };
    EXPECT(lines);
}

static void partial_options(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0],'copy_on_partial':false}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'store_context','id':1}", "{'stored':{'32':2}}"},
        {"{'op':'add','requests':[{'id':2,'tokens':[0,1,2,3,4,50]}]}", "{'requests':[{'prepopulated':4}]}"},
        {"{'op':'remove','id':1}", "{}"},
        {"{'op':'add','requests':[{'id':3,'tokens':[0,1,50]}]}", "{'requests':[{'prepopulated':0}]}"},
        {"{'op':'add','requests':[{'id':4,'tokens':[0,1,2,3,4,50]}]}",
         "{'requests':[{'prepopulated':5,'ids':{'32':[[0,1]]}}]}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0],'partial_reuse':false}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,7]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'remove','id':1}", "{'stored':{'32':2}}"},
        {"{'op':'add','requests':[{'id':2,'tokens':[0,1,2,3,4,60,61]}]}", "{'requests':[{'prepopulated':4}]}"},
        {"{'op':'add','requests':[{'id':3,'tokens':[0,1,2,3,4,5,50]}]}", "{'requests':[{'prepopulated':6}]}"},
    };
    EXPECT(lines);
}

/* Request 2 takes the block that request 1 has copied from, as soon as it is released. */
static void a_copied_block_serves_the_same_batch(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[4,0]}", "{}"},
        {"{'op':'add','requests':[{'id':0,'range':[0,9]}]}", "{}"},
        {"{'op':'prefill','id':0}", "{}"},
        {"{'op':'remove','id':0}", "{'stored':{'32':2}}"},
        {"{'op':'add','requests':[{'id':1,'tokens':[0,1,50]},{'id':2,'range':[60,13]}]}", "{'error':'capacity'}"},
        {"{'op':'add','requests':[{'id':1,'tokens':[0,1,50]},{'id':2,'range':[60,12]}]}",
         "{'requests':[{'prepopulated':2,'ids':{'32':[[2]]}},{'ids':{'32':[[3,1,0]]},'alloc_new':1}],"
         "'free':{'32':0}}"},
        {"{'op':'check'}", "{'ok':true}"},
    };
    EXPECT(lines);
}

static void sizing(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'size_pools','tokens_per_block':16,'max_seq_len':256,'windows':[-1,256],'size_per_head':8,"
         "'recurrent':{'state_bytes':1000,'snapshot_interval':16},'primary_bytes':10000,'max_batch':3,'reuse':false}",
         "{'windows':{'-1':{'blocks':[3,0],'block_bytes':1000},'256':{'blocks':[13,0],'block_bytes':512}}}"},
        {"{'op':'size_pools','tokens_per_block':16,'max_seq_len':256,'windows':[-1,256],'size_per_head':8,"
         "'recurrent':{'state_bytes':1000,'snapshot_interval':16},'primary_bytes':10000,'max_batch':3}",
         "{'windows':{'-1':{'blocks':[5,0]},'256':{'blocks':[9,0]}}}"},
        {"{'op':'size_pools','tokens_per_block':16,'max_seq_len':256,'windows':[256,64],'size_per_head':8,"
         "'primary_bytes':102400,'extra_bytes':2400,'share':'proportional'}",
         "{'windows':{'64':{'blocks':[39,0]},'256':{'blocks':[156,0]}}}"},
        {"{'op':'size_pools','tokens_per_block':16,'max_seq_len':256,'windows':[256,64],"
         "'ranks':[{'primary_bytes':100000},{'primary_bytes':100000,'windows':[256]}]}",
         "{'error':'invalid'}"},
        {"{'op':'size_pools','tokens_per_block':16,'max_seq_len':256,'windows':[256,64],'primary_bytes':100000,"
         "'share':[1]}",
         "{'error':'invalid'}"},
        {"{'op':'block_requirements','input':1,'output':-1,'window':4,'tokens_per_block':4}", "{'error':'invalid'}"},
    };
    EXPECT(lines);
}

static void cross_caches(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[8,0],'cache':'cross','max_beam':2}", "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,6],'beam':2}]}", "{'requests':[{'ids':{'32':[[0,1],[0,1]]}}]}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'append','id':1,'tokens':[1]}", "{'error':'unsupported'}"},
        {"{'op':'rewind','id':1,'n':1}", "{'error':'unsupported'}"},
        {"{'op':'needed','range':[0,6],'beam':2}", "{'blocks':2}"},
        {"{'op':'needed','id':1}", "{'blocks':0}"},
        {"{'op':'remaining','range':[0,6],'beam':2}", "{'blocks':2}"},
    };
    EXPECT(lines);
}

static void per_request_policy(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':2,'max_seq_len':32,'windows':[4],'blocks':[8,0],'sink_tokens':1,"
         "'reuse_policy':'per_request'}",
         "{}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,9]}]}", "{}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'remove','id':1}", "{'stored':{'4':2}}"},
        {"{'op':'tree'}", "{'windows':{'4':[{'block':0,'tokens':[0,1]},{'block':3,'tokens':[0,1,2,3,4,5,6,7]}]}}"},
    };
    EXPECT(lines);
}

static void garbage(void **state)
{
    (void)state;
    static const script_line lines[] = {
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[4,0]}", "{}"},
        {"{", "{'error':'invalid','op':2}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[1000000000,0]}", "{'error':'capacity'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[9223372036854775807,0]}",
         "{'error':'capacity'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':[4,0],'windows':[0]}", "{'error':'invalid'}"},
        {"{'op':'init','tokens_per_block':4,'max_seq_len':32,'blocks':{'32':[4,0],'16':[4,0]}}", "{'error':'invalid'}"},
        {"[]", "{'error':'invalid'}"},
        {"7", "{'error':'invalid'}"},
        {"{'op':7}", "{'error':'invalid'}"},
        {"{'op':'add'}", "{'error':'invalid'}"},
        {"{'op':'add','requests':{}}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[7]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'range':[0,4]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4],'tokens':[1]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'tokens':[1.5]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'tokens':[4294967296]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'tokens_i32':'0z'}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[2147483647,2]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4],'salt':[]}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4],'retention':{'decode_priority':101}}]}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4],'id':2}]}", "{'error':'invalid'}"},
        {"{'op':'unpin','handles':[[1,2]]}", "{'error':'invalid'}"},
        {"{'op':'unpin','handles':[[32,0,1]]}", "{'error':'not_found'}"},
        {"{'op':'offload','block':0}", "{'error':'state'}"},
        {"{'op':'offload','block':9}", "{'error':'not_found'}"},
        {"{'op':'read','block':0,'rows':5}", "{'error':'invalid'}"},
        {"{'op':'read','block':0,'id':1,'index':0}", "{'error':'invalid'}"},
        {"{'op':'write','block':0}", "{'error':'invalid'}"},
        {"{'op':'truncate','range':[0,4],'keep':-1}", "{'error':'invalid'}"},
        {"{'op':'append','id':1,'tokens':[1]}", "{'error':'not_found'}"},
        {"{'op':'schedule_release','id':1}", "{'error':'not_found'}"},
        {"{'op':'schedule_fits','blocks':1}", "{'error':'state'}"},
        {"{'op':'record','count':-1}", "{'error':'invalid'}"},
        {"{'op':'add','requests':[]}", "{'requests':[]}"},
        {"{'op':'add','requests':[{'id':1,'range':[0,4]}]}", "{'requests':[{'ids':{'32':[[0]]}}],'free':{'32':3}}"},
        {"{'op':'prefill','id':1}", "{}"},
        {"{'op':'append','id':1,'range':[0,29]}", "{'error':'capacity'}"},
        {"{'op':'append','id':1,'range':[0,0]}", "{'error':'invalid'}"},
        {"{'op':'make_private','id':1,'index':1}", "{'error':'not_found'}"},
        {"{'op':'read','id':1,'index':0,'beam':1}", "{'error':'not_found'}"},
        {"{'op':'diag'}", "{'sequences':1,'context':0,'generation':1,'pins':0,'stalled':{'32':false}}"},
        {"{'op':'check'}", "{'ok':true,'violations':[]}"},
    };
    EXPECT(lines);
    char *out = blocks_answers("\0\xff{\"op\":\"x\xff\"}\n\r\n  \n{\"op\":\"comment\"}", 28);
    assert_int_equal(lines_of(out), 2);
    free(out);
}

static void program(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, CKV_PROGRAM " blocks");
    workplace_put(&place, "a.jsonl", "\n{\"op\":\"comment\"}\nnonsense\n");
    workplace_expect(&place, "a.jsonl", 0, NULL, "");
    assert_int_equal(lines_of(place.out), 2);
    assert_non_null(strstr(place.out, "{\"op\":2,\"name\":\"comment\"}"));
    workplace_expect(&place, "- <a.jsonl", 0, NULL, "");
    workplace_expect(&place, "", 2, "", "the script is missing");
    workplace_expect(&place, "a.jsonl b.jsonl", 2, "", "one script at a time");
    workplace_expect(&place, "none.jsonl", 2, "", "none.jsonl: cannot be read");
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(public_cases),
    CKV_CASE(pools_of_every_kind),
    CKV_CASE(recurrent_state),
    CKV_CASE(beams_part_at_a_state_boundary),
    CKV_CASE(sinks_stay),
    CKV_CASE(scratch_pages),
    CKV_CASE(tokens_of_a_connector),
    CKV_CASE(rewinding),
    CKV_CASE(rewound_tails_are_owned),
    CKV_CASE(names_keep_prefixes_apart),
    CKV_CASE(partial_options),
    CKV_CASE(a_copied_block_serves_the_same_batch),
    CKV_CASE(sizing),
    CKV_CASE(cross_caches),
    CKV_CASE(per_request_policy),
    CKV_CASE(garbage),
    CKV_CASE(program),
};

CKV_TEST_MAIN("blocks", cases)
