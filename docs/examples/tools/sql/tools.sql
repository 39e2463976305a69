create table if not exists orders (id bigint primary key, total numeric not null, refunded_at timestamptz);
insert into orders values (1, 20), (2, 30) on conflict do nothing;

create or replace function tools.shop_refund(input jsonb) returns jsonb language plpgsql as $$
declare
  refund orders;
begin
  update orders set refunded_at = now() where id = (input ->> 'order_id')::bigint and refunded_at is null
    returning * into refund;
  if not found then
    raise exception 'There is no order % to refund.', input ->> 'order_id'
      using errcode = 'GM100', detail = '{"error_code": "not_refundable"}';
  end if;
  perform gem.wrote('orders', 'update', refund.id);
  return jsonb_build_object('refunded', refund.total);
end
$$;
