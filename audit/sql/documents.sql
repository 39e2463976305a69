-- The documents of extract.*: compares their parts with the numbers and hashes that the triggers wrote.
with part as (
  select p.*, lag(seq, 1, 0) over document as seq_before, lag(total, 1, 0) over document as total_before
  from public.extract_document_parts p
  window document as (partition by document_id order by seq)
)
select 'extract-part' as name, p.document_id::text as id, case
    when d.id is null then format('its part %s exists, but the document does not', p.seq)
    when p.seq <> p.seq_before + 1 then format('its part %s comes after the part %s', p.seq, p.seq_before)
    when p.created_by is distinct from d.created_by then format('its part %s belongs to another user than the document',
      p.seq)
    else format('the hash or the size of its part %s differs from the text', p.seq) end as what
from part p
left join public.extract_documents d on d.id = p.document_id
where d.id is null or p.seq <> p.seq_before + 1 or p.created_by is distinct from d.created_by
  or p.bytes <> octet_length(convert_to(p.text, 'UTF8'))
  or p.total <> p.total_before + p.bytes or p.sha256 <> encode(sha256(convert_to(p.text, 'UTF8')), 'hex')
