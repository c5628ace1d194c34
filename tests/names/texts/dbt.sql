-- top
with source as (

    select * from main.shop.sales

),

renamed as (

    select
        id as sale_id,
        product as product_name,
        qty as quantity,
        sold_at
    from source

),

ranked as (

    select product_name, sum(quantity) as total_quantity
    from renamed
    where sold_at >= timestamp '2026-02-01 00:00:00'
    group by 1

)

select * from ranked
order by total_quantity desc, product_name
limit 10;
-- month
/* {"app": "dbt", "dbt_version": "1.9.1", "profile_name": "shop", "target_name": "prod", "node_id": "model.shop.fct_monthly"} */
with sales as (

    select * from `main`.`shop`.`sales`

),

final as (

    select
        date_trunc('month', sold_at) as month,
        sum(price) as revenue
    from sales
    where sold_at >= timestamp '2026-03-01 00:00:00'
      and sold_at < timestamp '2026-06-01 00:00:00'
    group by date_trunc('month', sold_at)

)

select * from final;
-- having
with  __dbt__cte__stg_sales as (

-- Staging: one row per sale
select
    id as sale_id,
    product,
    cast(qty as bigint) as quantity
from `main`.`shop`.`sales`
), products as (

    select product, sum(quantity) as quantity
    from __dbt__cte__stg_sales
    group by product
    having sum(quantity) > 60

)

select * from products;
-- total
select
      sum(qty) as total_quantity
from `main`.`shop`.`sales`
where region in ('north', 'east')
  and sold_on >= '2026-04-01';
-- segments
with sales as (

    select * from main.shop.sales

),

customers as (

    select * from main.shop.customers

),

joined as (

    select
        sales.qty,
        customers.segment
    from sales
    left join customers
        on sales.customer_id = customers.customer_id
    where sales.sold_on >= date '2026-04-01'

),

final as (

    select
        segment,
        sum(qty) as quantity,
        count(*) as sales
    from joined
    group by 1

)

select * from final;
-- unique
select
    count(*) as failures,
    count(*) != 0 as should_warn,
    count(*) != 0 as should_error
from (

    

select
    id as unique_field,
    count(*) as n_records

from `main`.`shop`.`sales`
where id is not null
group by id
having count(*) > 1



  
  
      
    ) dbt_internal_test;
-- relationships
with child as (
    select customer_id as from_field
    from `main`.`shop`.`sales`
    where customer_id is not null
),

parent as (
    select customer_id as to_field
    from `main`.`shop`.`customers`
)

select
    from_field

from child
left join parent
    on child.from_field = parent.to_field

where parent.to_field is null;
-- latest
with ranked as (

    select
        *,
        row_number() over (partition by product order by sold_at desc, id) as rn
    from main.shop.sales

)

select id, product, sold_at, qty
from ranked
where rn <= 2;
